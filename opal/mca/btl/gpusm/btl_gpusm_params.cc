// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_params.cc: MCA parameters, their ranges, and the performance variables. Parameters
// that mean what they mean in btl/smcuda have its names.
#include "opal/mca/btl/gpusm/btl_gpusm_self.h"

#include "opal/mca/common/gpusm/choose.h"
#include "opal/mca/common/gpusm/gpu/copy_choice.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpusm {

namespace {

constexpr std::size_t kibi = 1024;
constexpr std::size_t mebi = 1024 * kibi;
constexpr std::size_t gibi = 1024 * mebi;

constexpr copy_limits default_limits;

mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
mca_btl_base_module_t &module = mca_btl_gpusm.super;

struct parameter {
    const char *name;
    mca_base_var_type_t type;
    void *storage;
    std::uint64_t value; // without a setting; of texts see register_parameters
    mca_base_var_info_lvl_t level;
    const char *description;
    std::uint64_t least = 0;
    std::uint64_t most = UINT64_MAX;
    bool or_zero = false;
};

constexpr auto flag = MCA_BASE_VAR_TYPE_BOOL;
constexpr auto number = MCA_BASE_VAR_TYPE_UNSIGNED_INT;
constexpr auto bytes = MCA_BASE_VAR_TYPE_SIZE_T;
constexpr auto text = MCA_BASE_VAR_TYPE_STRING;

const parameter parameters[] = {
    {"free_list_max", number, &component.free_list_max, 512, OPAL_INFO_LVL_5,
     "Most fragments of each size; of the largest one an eighth of that (8 .. 16384)", 8, 16384},
    {"fifo_size", number, &component.fifo_size, default_fifo_size, OPAL_INFO_LVL_4,
     "Messages that can wait for this process in its FIFO (16 .. 65536); rounded up to a power of "
     "two",
     16, 65536},
    {"fast_box_max", number, &component.fast_box_max, default_fast_box_max, OPAL_INFO_LVL_5,
     "Peers for whose small messages this process makes a fast box, once they have sent some; the "
     "others send theirs in fragments (0 .. 1024)",
     0, 1024},
    {"segment_size", bytes, &component.segment_size, 0, OPAL_INFO_LVL_5,
     "Upper bound in bytes of this process's shared segment; 0: what the fragment lists can come "
     "to need (0, or 1 MiB .. 1 GiB). Memory is taken only as it is used.",
     mebi, max_segment_bytes, true},
    {"backing_directory", text, &component.backing_directory, 0, OPAL_INFO_LVL_3,
     "Directory for the shared segments; must be on a memory-backed file system that all "
     "processes of the node share"},
    {"use_cuda_ipc", flag, &component.use_cuda_ipc, 1, OPAL_INFO_LVL_4,
     "Let peers read device memory directly through CUDA IPC; without it GPU messages go through "
     "host memory"},
    {"use_cuda_events", flag, &component.use_cuda_events, 0, OPAL_INFO_LVL_4,
     "Let a peer's read wait for work that is still running on the sender's legacy default stream "
     "(an interprocess event per message). Off: what the program finished or copied synchronously "
     "before MPI_Send is what arrives. On: such copies go one by one."},
    {"register_segments", flag, &component.register_segments, 1, OPAL_INFO_LVL_5,
     "Register the shared segment with the CUDA driver when the GPU is first used, which makes "
     "copies through host memory faster"},
    {"cache_max_bytes", bytes, &component.cache_max_bytes, 64 * gibi, OPAL_INFO_LVL_5,
     "Bytes of peers' allocations that are kept mapped while nobody uses them (0: no bound)"},
    {"use_batch_copies", flag, &component.use_batch_copies, default_limits.batches, OPAL_INFO_LVL_9,
     "Use cuMemcpyBatchAsync for copies that are not for the kernel, where the driver and the "
     "headers that gpusm was built with have it (CUDA 12.8)"},
    {"kernel_blocks", number, &component.kernel_blocks, default_limits.kernel_blocks,
     OPAL_INFO_LVL_5,
     "Thread blocks of the kernel that gathers small and middle-sized copies (1 .. 1024); 0 "
     "switches the kernel off",
     0, 1024},
    {"quick_pointer_check", flag, &component.quick_pointer_check, 1, OPAL_INFO_LVL_9,
     "Answer Open MPI's question whether a buffer is device memory with one driver call instead "
     "of about ten, from the first peer on (Open MPI 5.0 only)"},
    {"use_single_copy", flag, &component.use_single_copy, 1, OPAL_INFO_LVL_4,
     "Let peers read long messages straight from host memory, and both sides of a message between "
     "a device and host memory copy a part, where Open MPI's framework smsc can (CMA, "
     "XPMEM); without it host messages go in fragments, and one side copies the others alone"},
    {"stream_host_after", bytes, &component.stream_host_after, 0, OPAL_INFO_LVL_5,
     "From a peer of whose messages so many bytes have come, long host messages are streamed "
     "through a ring in shared memory, in pieces that the sender copies in while the receiver "
     "copies out the ones before; until then the receiver makes a single copy, of long messages "
     "together with the sender. The default depends on the machine's processors: 64 MiB or never."},
    {"staging_device_bytes", bytes, &component.staging_device_bytes, 128 * mebi, OPAL_INFO_LVL_5,
     "Device memory of the rings that a device gets for messages out of memory of other processes "
     "that cannot be exported: managed memory, VMM memory without a handle type, the default pool "
     "(4 MiB .. 4 GiB); 0: such messages go through host memory",
     4 * mebi, 4 * gibi, true},
    {"staging_host_bytes", bytes, &component.staging_host_bytes, 4 * mebi, OPAL_INFO_LVL_5,
     "Part of the shared segment that becomes a ring for messages between host and device, one for "
     "each peer that sends some at the same time, 8 at most (256 KiB .. 256 MiB)",
     256 * kibi, 256 * mebi},
    {"use_direct_host", flag, &component.use_direct_host, 1, OPAL_INFO_LVL_4,
     "Let the sender copy host memory that the program has page-locked straight into the "
     "receiver's device memory; without it such memory goes like all host memory, in pieces by "
     "the processor"},
    {"delegate_wait", number, &component.delegate_wait, default_delegate_wait_us, OPAL_INFO_LVL_5,
     "Where processes use the same device without MPS one of them submits the copies of all, "
     "because the device takes some 150 us to change between processes. Microseconds that the "
     "others wait for it to take a copy before they make it themselves (1 .. 10000000); 0: each "
     "submits its own copies",
     0, 10000000},
    {"use_self", flag, &component.use_self, 1, OPAL_INFO_LVL_4,
     "Carry messages of a process to itself, too, in the place of btl/self, so that those out of "
     "or "
     "into device memory are one copy of the device"},
    {"check_sync", flag, &component.check_sync, 0, OPAL_INFO_LVL_3,
     "Look for device and page-locked memory that the program gives to MPI while its kernels or "
     "copies still write it, and tell where that is. Each call waits for the device: for finding "
     "errors only"},
    {"summary", flag, &component.summary, 0, OPAL_INFO_LVL_3,
     "At the end of each process print which messages it has sent and fetched, by peer and mode, "
     "and why some took another way"},
    {"cuda_ipc_verbose", number, &component.cuda_ipc_verbose, 0, OPAL_INFO_LVL_4,
     "Verbosity of messages about CUDA IPC and the segments (0 .. 100; 20 tells which way is "
     "taken)",
     0, 100},
};

// Are two copies through shared memory faster here than a single copy with its system call? They
// move every cache line between the processors twice, a single copy once. AMD's processors move
// lines so fast that eager and streamed messages take half the time; between Intel's a single copy
// is the faster one from 16 KiB on (docs/performance.md).
bool two_copies_are_faster()
{
#if defined(__x86_64__)
    return 0 != __builtin_cpu_is("amd");
#else
    return false;
#endif
}

// Does ob1 send device memory eagerly up to the limit for all memory? An Open MPI built without
// CUDA knows no other, and whatever fits it is staged through host memory twice.
bool device_memory_shares_the_limit()
{
#if OPAL_CUDA_GDR_SUPPORT
    return false;
#else
    const std::string_view chosen =
        opal_accelerator_base_selected_component.base_version.mca_component_name;
    return !chosen.empty() && chosen != "null";
#endif
}

// Longer eager messages where processes outnumber processors: neither a stream nor a single copy's
// request and answer has both processes at work there, and whoever gets a whole message needs to
// wait for nobody.
std::size_t default_eager_bytes()
{
    if (device_memory_shares_the_limit()) {
        return 4 * kibi;
    }
    return (two_copies_are_faster() && is_oversubscribed() ? 64 : 8) * kibi;
}

bool is_in_range(const char *name, std::uint64_t value, std::uint64_t least, std::uint64_t most)
{
    if (value < least || value > most) {
        show_help("parameter out of range", name, std::to_string(value).c_str(),
                  static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
    }
    return value >= least && value <= most;
}

// The module for messages to oneself has no parameters of its own: ob1 sees one set a component.
void set_limits_of_self()
{
    mca_btl_base_module_t &self = mca_btl_gpusm_self.super;
    self.btl_exclusivity =
        MCA_BTL_EXCLUSIVITY_HIGH + 2; // btl/self's is HIGH, btl/smcuda's one more
    self.btl_flags = MCA_BTL_FLAGS_SEND | MCA_BTL_FLAGS_SEND_INPLACE | MCA_BTL_FLAGS_GET;
    self.btl_eager_limit = self_eager_bytes;
    self.btl_rndv_eager_limit = self_eager_bytes;
    self.btl_max_send_size = self_fragment_bytes;
    self.btl_accelerator_max_send_size = self_fragment_bytes;
    self.btl_get_limit = SIZE_MAX;
    self.btl_min_rdma_pipeline_size = SIZE_MAX; // no put, as below
    self.btl_latency = 0;
    self.btl_bandwidth = 10000;
#if OPAL_CUDA_GDR_SUPPORT
    self.btl_accelerator_eager_limit = self_device_eager_bytes;
#endif
}

// Whether nobody has set that parameter: a limit that is no lower than another one then follows it.
bool is_default(const char *name)
{
    const auto &of = component.super.btl_version;
    const int index =
        mca_base_var_find(of.mca_project_name, of.mca_type_name, of.mca_component_name, name);
    mca_base_var_source_t source = MCA_BASE_VAR_SOURCE_DEFAULT;
    return index >= 0 && OPAL_SUCCESS == mca_base_var_get_value(index, nullptr, &source, nullptr) &&
           MCA_BASE_VAR_SOURCE_DEFAULT == source;
}

} // namespace

void register_parameters()
{
    component.backing_directory = const_cast<char *>("/dev/shm");
    component.stream_host_after = two_copies_are_faster() ? warm_ring_bytes : SIZE_MAX;
    for (const parameter &each : parameters) {
        if (flag == each.type) {
            *static_cast<bool *>(each.storage) = 0 != each.value;
        } else if (number == each.type) {
            *static_cast<unsigned *>(each.storage) = static_cast<unsigned>(each.value);
        } else if (bytes == each.type && each.storage != &component.stream_host_after) {
            *static_cast<size_t *>(each.storage) = each.value;
        }
        (void)mca_base_component_var_register(&component.super.btl_version, each.name,
                                              each.description, each.type, nullptr, 0,
                                              static_cast<mca_base_var_flag_t>(0), each.level,
                                              MCA_BASE_VAR_SCOPE_READONLY, each.storage);
    }

    set_limits_of_self();
    // Above btl/sm (HIGH) and btl/smcuda (one more): btl_gpusm_exclusive.cc says why never beside
    // one.
    module.btl_exclusivity = MCA_BTL_EXCLUSIVITY_HIGH + 2;
    // With a header of ob1's, none of which is longer.
    constexpr size_t header_bytes = 256;
    const std::size_t eager = default_eager_bytes();
    module.btl_eager_limit = eager + header_bytes;
    module.btl_rndv_eager_limit = std::min(eager, 8 * kibi) + header_bytes;
    module.btl_max_send_size = std::max(eager, 8 * kibi) + header_bytes;
    module.btl_flags = MCA_BTL_FLAGS_SEND | MCA_BTL_FLAGS_GET;
    module.btl_get_limit = SIZE_MAX;
    // ob1 takes every module with GET for one with PUT when it plans the rest of a host message
    // longer than this, and would call btl_put, which there is none of.
    module.btl_min_rdma_pipeline_size = SIZE_MAX;
    module.btl_latency = 1;
    module.btl_bandwidth = 10000;
    (void)mca_btl_base_param_register(&component.super.btl_version, &module);
    module.btl_rndv_eager_limit = std::min(module.btl_rndv_eager_limit, module.btl_eager_limit);
    if (is_default("max_send_size")) {
        module.btl_max_send_size = std::max(module.btl_max_send_size, module.btl_eager_limit);
    }
    // Set afterwards, because the call above clears them for modules without an accelerator
    // flag; ours belongs to single endpoints.
    if (0 == module.btl_accelerator_max_send_size) {
        module.btl_accelerator_max_send_size = 128 * kibi;
    }
    if (is_default("accelerator_max_send_size")) {
        module.btl_accelerator_max_send_size =
            std::max(module.btl_accelerator_max_send_size, module.btl_max_send_size);
    }
#if OPAL_CUDA_GDR_SUPPORT
    if (0 == module.btl_accelerator_eager_limit) {
        // ob1 reads this as: only the header goes eagerly, so that GPU messages of every size
        // can be fetched.
        module.btl_accelerator_eager_limit = SIZE_MAX;
    }
#endif
}

settings settings_of_parameters(std::size_t content_bytes)
{
    return {.backing_directory = component.backing_directory,
            .jobid = OPAL_PROC_MY_NAME.jobid,
            .vpid = OPAL_PROC_MY_NAME.vpid,
            .expected_peers = opal_process_info.num_local_peers + 1,
            .fifo_size = component.fifo_size,
            .fast_box_max = component.fast_box_max,
            .segment_bytes = component.segment_size,
            .content_bytes = content_bytes,
            .use_cuda_ipc = component.use_cuda_ipc,
            .use_cuda_events = component.use_cuda_events,
            .register_segments = component.register_segments,
            .cache_max_bytes = component.cache_max_bytes,
            .kernel_blocks = component.kernel_blocks,
            .use_batch_copies = component.use_batch_copies,
            .delegate_wait_us = component.delegate_wait,
            .check_sync = component.check_sync};
}

bool check_parameters()
{
    for (const parameter &each : parameters) {
        const std::uint64_t value =
            number == each.type  ? *static_cast<const unsigned *>(each.storage)
            : bytes == each.type ? *static_cast<const size_t *>(each.storage)
                                 : 0;
        if (!(0 == value && each.or_zero) &&
            !is_in_range(each.name, value, each.least, each.most)) {
            return false;
        }
    }
    // ob1 wants room for its header, which it checks.
    if (!is_in_range("eager_limit", module.btl_eager_limit, 64, 128 * kibi) ||
        !is_in_range("max_send_size", module.btl_max_send_size, module.btl_eager_limit, 4 * mebi) ||
        !is_in_range("accelerator_max_send_size", module.btl_accelerator_max_send_size,
                     module.btl_max_send_size, 4 * mebi) ||
        !is_in_range("get_limit", module.btl_get_limit, 4 * kibi, UINT64_MAX)) {
        return false;
    }
#if OPAL_CUDA_GDR_SUPPORT
    // Up to there device messages go in one fragment.
    if (SIZE_MAX != module.btl_accelerator_eager_limit &&
        !is_in_range("accelerator_eager_limit", module.btl_accelerator_eager_limit, 80,
                     module.btl_accelerator_max_send_size)) {
        return false;
    }
#endif
    const char *folder = nullptr == component.backing_directory ? "" : component.backing_directory;
    if ('/' != folder[0]) {
        show_help("backing directory", folder);
        return false;
    }
    return true;
}

void register_counters()
{
    static_assert(sizeof(component.counters[0]) == sizeof(unsigned long long));
    // Those of the modes of a get bear their names.
    static_assert(std::all_of(std::begin(modes), std::end(modes), [](const mode_description &each) {
        const auto is_named = [&each](counter which, std::string_view ends) {
            const std::string_view name = counter_descriptions[static_cast<unsigned>(which)].name;
            return name.starts_with(each.name) &&
                   name.substr(std::string_view(each.name).size()) == ends;
        };
        return each.described < mode::single_copy ||
               (is_named(messages_in(each.described), "_messages") &&
                is_named(bytes_in(each.described), "_bytes"));
    }));
    unsigned number = 0;
    for (const counter_description &each : counter_descriptions) {
        const bool is_level = number >= static_cast<unsigned>(counter::mapped_allocations);
        (void)mca_base_component_pvar_register(
            &component.super.btl_version, each.name, each.description, OPAL_INFO_LVL_4,
            is_level ? MCA_BASE_PVAR_CLASS_LEVEL : MCA_BASE_PVAR_CLASS_COUNTER,
            MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG, nullptr, MCA_BASE_VAR_BIND_NO_OBJECT,
            static_cast<mca_base_pvar_flag_t>(MCA_BASE_PVAR_FLAG_READONLY |
                                              MCA_BASE_PVAR_FLAG_CONTINUOUS),
            nullptr, nullptr, nullptr, &component.counters[number++]);
    }
}

} // namespace gpusm
