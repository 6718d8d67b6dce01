// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm.h"

#include "ompi/mca/coll/gpusm/coll_gpusm_peers.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/pages.h"
#include "opal/mca/common/gpusm/base/single_copies.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include <sys/statvfs.h>

namespace gpusm {

namespace {

constexpr std::size_t alignment = 64; // of each process's part of memory that is allocated

std::size_t rounded_up(std::size_t bytes, std::size_t to)
{
    return (bytes + to - 1) / to * to;
}

// Pages come when they are touched, and SIGBUS where there are none any more.
bool has_room(const std::string &directory, std::size_t bytes)
{
    struct statvfs about;
    if (0 != statvfs(directory.c_str(), &about) || about.f_bavail > SIZE_MAX / about.f_frsize ||
        bytes <= about.f_bavail * about.f_frsize) {
        return true;
    }
    log_line(log_level::error, "a window takes %zu MiB of shared memory, and %s has %zu MiB left",
             bytes >> 20, directory.c_str(),
             static_cast<std::size_t>(about.f_bavail * about.f_frsize) >> 20);
    return false;
}

// What each process tells the others.
struct told_to_all {
    window_memory memory;
    std::int64_t unit;
};

} // namespace

window::window(local_process &process, int flavor)
    : process_(process), flavor_(flavor), owner_(*this)
{
}

int window::agree(int mine)
{
    int all = mine;
    if (size_ > 1) {
        const int rc = comm_->c_coll->coll_allreduce(&mine, &all, 1, MPI_INT, MPI_MAX, comm_,
                                                     comm_->c_coll->coll_allreduce_module);
        return OMPI_SUCCESS == rc ? all : rc;
    }
    return all;
}

// A file of zeroes that all processes have mapped, and that then has no name any more.
int window::map_file(std::size_t bytes)
{
    struct {
        opal_shmem_ds_t segment;
        int rc;
    } made{};
    file_names &names = mca_osc_gpusm_component.open->files;
    std::string path;
    if (0 == rank_) {
        const segment &own = process_.own_node().own();
        path = names.take(own.path());
        made.rc = has_room(own.directory(), bytes)
                      ? opal_shmem_segment_create(&made.segment, path.c_str(), bytes)
                      : OPAL_ERR_OUT_OF_RESOURCE;
    }
    int rc = comm_->c_coll->coll_bcast(&made, sizeof(made), MPI_BYTE, 0, comm_,
                                       comm_->c_coll->coll_bcast_module);
    segment_ = made.segment;
    if (0 != rank_) {
        // Where each process has a PID namespace they may all have the creator's number, which to
        // Open MPI means that the memory is mapped here already.
        segment_.seg_cpid = 0;
    }
    const bool is_there = OPAL_SUCCESS == made.rc;
    if (OMPI_SUCCESS == rc && is_there) {
        mapped_ = static_cast<unsigned char *>(opal_shmem_segment_attach(&segment_));
        rc = agree(nullptr == mapped_ ? 1 : 0);
    }
    if (0 == rank_) {
        if (is_there) {
            (void)opal_shmem_unlink(&segment_);
        }
        names.give_back(path);
    }
    return rc > 0 || (OMPI_SUCCESS == rc && !is_there) ? OMPI_ERR_OUT_OF_RESOURCE : rc;
}

// Zeroed memory that all processes have mapped: what they share, and behind it as many bytes for
// each as it wants.
int window::share_memory(std::size_t own_bytes, std::vector<std::size_t> *sizes, bool each_at_page,
                         unsigned char **data)
{
    const std::size_t page = system_page_bytes();
    const auto ranks = static_cast<std::size_t>(size_);
    sizes->assign(ranks, own_bytes);
    int rc = size_ == 1
                 ? OMPI_SUCCESS
                 : comm_->c_coll->coll_allgather(&own_bytes, sizeof(own_bytes), MPI_BYTE,
                                                 sizes->data(), sizeof(own_bytes), MPI_BYTE, comm_,
                                                 comm_->c_coll->coll_allgather_module);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    const shared_layout where(ranks, MPI_WIN_FLAVOR_DYNAMIC == flavor_);
    const std::size_t state = rounded_up(where.bytes, page);
    std::size_t total = state;
    bool fits = true;
    for (std::size_t each : *sizes) {
        const std::size_t room = each_at_page ? rounded_up(each, page) : each;
        fits = fits && room >= each && total + room >= total;
        total += room;
    }
    if (!fits) { // as all see
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    if (1 == size_) {
        is_private_ = true;
        mapped_ = static_cast<unsigned char *>(std::aligned_alloc(page, rounded_up(total, page)));
        rc = nullptr == mapped_ ? OMPI_ERR_OUT_OF_RESOURCE : OMPI_SUCCESS;
        if (mapped_ != nullptr) {
            std::memset(mapped_, 0, state);
        }
    } else {
        rc = map_file(total);
    }
    if (OMPI_SUCCESS == rc) {
        shared_ = reinterpret_cast<shared_rank *>(mapped_);
        pairs_ = reinterpret_cast<shared_pair *>(mapped_ + where.pairs);
        attached_ = reinterpret_cast<attached_memory *>(mapped_ + where.attached);
        *data = mapped_ + state;
    }
    return rc;
}

// Finds the other processes, and whether their host memory can be copied from here.
void window::reach_peers()
{
    const bool single_copies = has_plain_single_copies();
    for (int i = 0; i < size_; ++i) {
        window_rank &of = ranks_[static_cast<std::size_t>(i)];
        if (i == rank_) {
            continue;
        }
        of.process = find_peer(process_, comm_, i);
        of.is_kept = of.process != nullptr && status::ok == of.process->attach() &&
                     of.process->keep_mapped();
        opal_proc_t &proc = ompi_comm_peer_lookup(comm_, i)->super;
        segment_place where;
        if (single_copies && find_segment(proc, &where) && where.same_pids) {
            of.single_copies = MCA_SMSC_CALL(get_endpoint, &proc);
        }
    }
}

bool window::reaches(const window_rank &of) const
{
    const window_region *memory = of.memory.get();
    if (nullptr == memory || memory->here != nullptr || 0 == memory->told.len_bytes) {
        return true;
    }
    unsigned char byte = 0;
    return nullptr == memory->mapped && 0 == memory->told.on_device &&
           of.single_copies != nullptr &&
           OPAL_SUCCESS == MCA_SMSC_CALL(copy_from, of.single_copies, &byte,
                                         reinterpret_cast<void *>(memory->told.base), 1, nullptr);
}

// Maps device memory now, in the program's own call, and not with the first operation.
int window::map_memory()
{
    for (window_rank &of : ranks_) {
        window_mapping *its = of.memory != nullptr ? of.memory->mapped.get() : nullptr;
        if (nullptr == its || nullptr == of.process) {
            continue;
        }
        const int rc = wait_until([&] {
            const std::lock_guard guard(its->side().lock);
            device *on = nullptr;
            window_mapping::place found_at;
            const window_region *own = ranks_[static_cast<std::size_t>(rank_)].memory.get();
            const bool found = (own != nullptr && own->mapped != nullptr &&
                                status::ok == own->mapped->preferred(&on)) ||
                               status::ok == its->preferred(&on);
            if (!found || status::busy != its->find(*on, &found_at)) {
                if (found) {
                    its->side().windows().prepare(*on);
                }
                return true;
            }
            return false;
        });
        if (OMPI_SUCCESS != rc) {
            return rc;
        }
    }
    return OMPI_SUCCESS;
}

int window::set_up(ompi_communicator_t *comm, void **base, std::size_t size, unit_type unit,
                   opal_info_t *info)
{
    int rc = ompi_comm_dup(comm, &comm_);
    if (OMPI_SUCCESS != rc) {
        comm_ = nullptr;
        return rc;
    }
    if (sync_check *checks = mca_osc_gpusm_component.checks; checks != nullptr) {
        checks->exclude(comm_);
    }
    rank_ = ompi_comm_rank(comm_);
    size_ = ompi_comm_size(comm_);
    ranks_ = std::vector<window_rank>(static_cast<std::size_t>(size_));
    has_devices_ =
        0 != std::strcmp(opal_accelerator_base_selected_component.base_version.mca_component_name,
                         "null");
    const bool is_allocated =
        MPI_WIN_FLAVOR_ALLOCATE == flavor_ || MPI_WIN_FLAVOR_SHARED == flavor_;
    bool apart = MPI_WIN_FLAVOR_ALLOCATE == flavor_;
    int given = 0;
    if (MPI_WIN_FLAVOR_SHARED == flavor_ && info != nullptr) {
        (void)opal_info_get_bool(info, "alloc_shared_noncontig", &apart, &given);
    }
    if (MPI_WIN_FLAVOR_SHARED == flavor_) { // a hint, which not all need have given
        const int together = agree(apart ? 0 : 1);
        if (together < 0) {
            return together;
        }
        apart = 0 == together;
    }
    std::vector<std::size_t> sizes;
    unsigned char *data = nullptr;
    const std::size_t own_bytes = !is_allocated                        ? 0
                                  : MPI_WIN_FLAVOR_ALLOCATE == flavor_ ? rounded_up(size, alignment)
                                                                       : size;
    rc = share_memory(own_bytes, &sizes, apart, &data);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    reach_peers();

    std::vector<unsigned char *> here(ranks_.size());
    if (is_allocated) {
        const std::size_t page = system_page_bytes();
        for (std::size_t i = 0; i < ranks_.size(); ++i) {
            here[i] = apart && 0 == sizes[i] ? nullptr : data;
            data += apart ? rounded_up(sizes[i], page) : sizes[i];
        }
        *base = here[static_cast<std::size_t>(rank_)];
    }
    told_to_all mine{};
    mine.unit = unit;
    if (MPI_WIN_FLAVOR_DYNAMIC != flavor_) {
        mine.memory = tell(*base, size);
    }
    std::vector<told_to_all> all(ranks_.size(), mine);
    if (size_ > 1) {
        rc = comm_->c_coll->coll_allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine),
                                           MPI_BYTE, comm_, comm_->c_coll->coll_allgather_module);
        if (OMPI_SUCCESS != rc) {
            return rc;
        }
    }
    bool all_reached = MPI_WIN_FLAVOR_DYNAMIC != flavor_;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
        ranks_[i].unit = static_cast<std::ptrdiff_t>(all[i].unit);
        if (MPI_WIN_FLAVOR_DYNAMIC != flavor_) {
            ranks_[i].memory = region_of(ranks_[i], all[i].memory);
            if (is_allocated) {
                ranks_[i].memory->here = here[i];
            }
            all_reached = reaches(ranks_[i]) && all_reached;
        }
    }
    // Whoever has device memory serves the others, as what can be mapped depends on their device.
    rc = agree(size_ == 1 || all_reached ? 0 : 1);
    if (rc > 0) { // nobody asks before all serve
        rc = agree(OMPI_SUCCESS == owner_.begin(comm_) ? 0 : 1);
    }
    return rc > 0 ? OMPI_ERR_OUT_OF_RESOURCE : rc;
}

int window::make(ompi_communicator_t *comm, void **base, std::size_t size, unit_type unit,
                 int flavor, opal_info_t *info, local_process &process, window **out)
{
    auto *made = new window(process, flavor);
    int rc = made->set_up(comm, base, size, unit, info);
    if (OMPI_SUCCESS != rc) {
        delete made;
        return rc;
    }
    {
        open_windows &open = *mca_osc_gpusm_component.open;
        const std::lock_guard guard(open.mutex);
        open.all.push_back(made);
        made->serves_ = made->owner_.is_serving();
        open.serving.fetch_add(made->serves_ ? 1 : 0, std::memory_order_relaxed);
        follow_progress(true);
    }
    // Needs the others' progress, so they have to be found there.
    rc = made->map_memory();
    if (OMPI_SUCCESS != rc) {
        log_line(log_level::info, "a window's device memory is not mapped yet");
    }
    *out = made;
    return OMPI_SUCCESS;
}

int window::free()
{
    int rc = complete_to_all();
    // Nobody uses this process's memory any more, nor asks for it.
    const int all = meet();
    {
        open_windows &open = *mca_osc_gpusm_component.open;
        const std::lock_guard guard(open.mutex);
        open.all.erase(std::remove(open.all.begin(), open.all.end(), this), open.all.end());
        open.serving.fetch_sub(serves_ ? 1 : 0, std::memory_order_relaxed);
        if (open.all.empty()) {
            open.requests.finish(); // nobody looks at them from now on
            follow_progress(false);
        }
    }
    rc = OMPI_SUCCESS == rc ? all : rc;
    delete this;
    return rc;
}

window::~window()
{
    owner_.end();
    for (window_rank &of : ranks_) {
        of.memory = nullptr;
        for (auto *all : {&of.attached, &of.joined, &of.retired}) {
            all->clear();
        }
        if (of.single_copies != nullptr) {
            MCA_SMSC_CALL(return_endpoint, of.single_copies);
        }
        if (of.is_kept) {
            of.process->let_go();
        }
    }
    if (!exports_.empty()) {
        gpu_side &side = *process_.gpu();
        const std::lock_guard guard(side.lock);
        for (const export_of &each : exports_) {
            side.exports.release(each.kept);
        }
    }
    if (is_private_) {
        std::free(mapped_);
    } else if (mapped_ != nullptr) {
        (void)opal_shmem_segment_detach(&segment_);
    }
    if (comm_ != nullptr) {
        if (sync_check *checks = mca_osc_gpusm_component.checks; checks != nullptr) {
            checks->include(comm_);
        }
        (void)ompi_comm_free(&comm_);
    }
    process_.release();
}

} // namespace gpusm
