// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_params.cc: MCA parameters, their ranges, and the performance variables. Parameters
// that mean what they mean in btl/smcuda have its names.
#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/gpu/copy_choice.h"
#include "opal/mca/btl/gpusm/protocol/select.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace gpusm {

namespace {

constexpr std::size_t kibi = 1024;
constexpr std::size_t mebi = 1024 * kibi;
constexpr std::size_t gibi = 1024 * mebi;

mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
mca_btl_base_module_t &module = mca_btl_gpusm.super;

template <typename T> struct mca_type;
template <> struct mca_type<int> {
    static constexpr mca_base_var_type_t value = MCA_BASE_VAR_TYPE_INT;
};
template <> struct mca_type<unsigned> {
    static constexpr mca_base_var_type_t value = MCA_BASE_VAR_TYPE_UNSIGNED_INT;
};
template <> struct mca_type<size_t> {
    static constexpr mca_base_var_type_t value = MCA_BASE_VAR_TYPE_SIZE_T;
};
template <> struct mca_type<bool> {
    static constexpr mca_base_var_type_t value = MCA_BASE_VAR_TYPE_BOOL;
};
template <> struct mca_type<char *> {
    static constexpr mca_base_var_type_t value = MCA_BASE_VAR_TYPE_STRING;
};

template <typename T>
void add(const char *name, T *storage, T value, mca_base_var_info_lvl_t level,
         const char *description)
{
    *storage = value;
    (void)mca_base_component_var_register(
        &component.super.btl_version, name, description, mca_type<T>::value, nullptr, 0,
        static_cast<mca_base_var_flag_t>(0), level, MCA_BASE_VAR_SCOPE_READONLY, storage);
}

// One value that must lie in a range; all as 64-bit numbers.
struct bound {
    const char *name;
    std::uint64_t value;
    std::uint64_t least;
    std::uint64_t most;
};

// A negative int becomes a number beyond every bound.
std::uint64_t number(int value)
{
    return value < 0 ? UINT64_MAX : static_cast<std::uint64_t>(value);
}

} // namespace

void register_parameters()
{
    const copy_limits limits; // the defaults
    add("free_list_max", &component.free_list_max, 512, OPAL_INFO_LVL_5,
        "Most fragments of each size; of the largest one an eighth of that (8 .. 16384)");
    add("fifo_size", &component.fifo_size, 1024U, OPAL_INFO_LVL_4,
        "Messages that can wait for this process in its FIFO (a power of two, 16 .. 65536)");
    add("max_peers", &component.max_peers, 1024U, OPAL_INFO_LVL_5,
        "Processes of this node that can ever send to this one (1 .. 65535)");
    add("fast_box_max", &component.fast_box_max, 32U, OPAL_INFO_LVL_5,
        "Peers for whose small messages this process makes a fast box, once they have sent some; "
        "the others send theirs in fragments (0 .. 1024)");
    add("fast_box_size", &component.fast_box_size, 4096U, OPAL_INFO_LVL_5,
        "Bytes of a fast box (a power of two, 512 .. 65536); a message may take five sixteenths of "
        "it");
    add("segment_size", &component.segment_size, size_t{0}, OPAL_INFO_LVL_5,
        "Upper bound in bytes of this process's shared segment; 0: what the fragment lists can "
        "come to need (0, or 1 MiB .. 1 GiB). Memory is taken only as it is used.");
    add("backing_directory", &component.backing_directory, const_cast<char *>("/dev/shm"),
        OPAL_INFO_LVL_3,
        "Directory for the shared segments; must be on a memory-backed file system that all "
        "processes of the node share");
    add("use_cuda_ipc", &component.use_cuda_ipc, true, OPAL_INFO_LVL_4,
        "Let peers read device memory directly through CUDA IPC; without it GPU messages go "
        "through host memory");
    add("use_cuda_events", &component.use_cuda_events, false, OPAL_INFO_LVL_4,
        "Let a peer's read wait for work that is still running on the sender's legacy default "
        "stream (an interprocess event per message). Off: what the program finished or copied "
        "synchronously before MPI_Send is what arrives. On: such copies go one by one.");
    add("register_segments", &component.register_segments, true, OPAL_INFO_LVL_5,
        "Register the shared segment with the CUDA driver when the GPU is first used, which makes "
        "copies through host memory faster");
    add("cache_max_bytes", &component.cache_max_bytes, 64 * gibi, OPAL_INFO_LVL_5,
        "Bytes of peers' allocations that are kept mapped while nobody uses them (0: no bound)");
    add("use_batch_copies", &component.use_batch_copies, limits.batches, OPAL_INFO_LVL_9,
        "Use cuMemcpyBatchAsync for copies that are not for the kernel, where the driver has it "
        "(CUDA 12.8)");
    add("kernel_blocks", &component.kernel_blocks, limits.kernel_blocks, OPAL_INFO_LVL_5,
        "Thread blocks of the kernel that gathers small and middle-sized copies (1 .. 1024); 0 "
        "switches the kernel off");
    add("quick_pointer_check", &component.quick_pointer_check, true, OPAL_INFO_LVL_9,
        "Answer Open MPI's question whether a buffer is device memory with one driver call "
        "instead of about ten, from the first GPU message on (Open MPI 5.0 only)");
    add("use_single_copy", &component.use_single_copy, true, OPAL_INFO_LVL_4,
        "Let peers read long messages straight from host memory, and both sides of a message "
        "between "
        "a device and host memory copy a part, where Open MPI's framework smsc can (CMA, XPMEM, "
        "KNEM); without it host messages are streamed, and one side copies the others alone");
    add("host_protocol", &component.host_protocol, const_cast<char *>("auto"), OPAL_INFO_LVL_5,
        "How host messages longer than the eager limit reach host memory: stream (sender and "
        "receiver copy at the same time, through a ring in shared memory), single_copy (the "
        "receiver reads the sender's memory) or auto (by what a system call costs here, and single "
        "copies where there are more processes than processors)");
    add("staging_device_bytes", &component.staging_device_bytes, 32 * mebi, OPAL_INFO_LVL_5,
        "Device memory of the staging ring that a device gets with the first message out of memory "
        "that cannot be exported: managed memory, VMM memory without a handle type, the default "
        "pool (4 MiB .. 4 GiB); 0: such messages go through host memory");
    add("staging_host_bytes", &component.staging_host_bytes, 4 * mebi, OPAL_INFO_LVL_5,
        "Part of the shared segment that becomes a staging ring with the first message that needs "
        "one (256 KiB .. 256 MiB)");
    add("use_direct_host", &component.use_direct_host, true, OPAL_INFO_LVL_4,
        "Let the sender copy host memory that the program has page-locked straight into the "
        "receiver's device memory; without it such memory goes like all host memory, in pieces by "
        "the processor");
    add("cuda_ipc_verbose", &component.cuda_ipc_verbose, 0, OPAL_INFO_LVL_4,
        "Verbosity of messages about CUDA IPC and the segments (0 .. 100; 20 tells which way is "
        "taken)");

    module.btl_exclusivity = MCA_BTL_EXCLUSIVITY_HIGH;
    // 8 KiB and 32 KiB with a header of ob1's, none of which is longer.
    constexpr size_t header_bytes = 256;
    module.btl_eager_limit = 8 * kibi + header_bytes;
    module.btl_rndv_eager_limit = module.btl_eager_limit;
    module.btl_max_send_size = 32 * kibi + header_bytes;
    module.btl_flags = MCA_BTL_FLAGS_SEND | MCA_BTL_FLAGS_GET;
    module.btl_get_limit = SIZE_MAX;
    // ob1 takes every module with GET for one with PUT when it plans the rest of a host message
    // longer than this, and would call btl_put, which there is none of.
    module.btl_min_rdma_pipeline_size = SIZE_MAX;
    // Behind btl/sm (latency 1), so that beside it host messages stay there and only GPU
    // messages come here.
    module.btl_latency = 2;
    module.btl_bandwidth = 10000;
    (void)mca_btl_base_param_register(&component.super.btl_version, &module);
    // Set afterwards, because the call above clears them for modules without an accelerator
    // flag; ours belongs to single endpoints.
    if (0 == module.btl_accelerator_max_send_size) {
        module.btl_accelerator_max_send_size = 128 * kibi;
    }
#if OPAL_CUDA_GDR_SUPPORT
    if (0 == module.btl_accelerator_eager_limit) {
        // ob1 reads this as: only the header goes eagerly, so that GPU messages of every size
        // can be fetched.
        module.btl_accelerator_eager_limit = SIZE_MAX;
    }
#endif
}

bool check_parameters()
{
    const bound bounds[] = {
        {"free_list_max", number(component.free_list_max), 8, 16384},
        {"fifo_size", component.fifo_size, 16, 65536},
        {"max_peers", component.max_peers, 1, max_peer_slots - 1},
        {"fast_box_max", component.fast_box_max, 0, 1024},
        {"fast_box_size", component.fast_box_size, 512, max_fast_box_units * sizeof(fast_box_unit)},
        {"segment_size", 0 == component.segment_size ? mebi : component.segment_size, mebi,
         max_segment_bytes},
        {"kernel_blocks", component.kernel_blocks, 0, 1024},
        {"staging_device_bytes",
         0 == component.staging_device_bytes ? 4 * mebi : component.staging_device_bytes, 4 * mebi,
         4 * gibi},
        {"staging_host_bytes", component.staging_host_bytes, 256 * kibi, 256 * mebi},
        {"cuda_ipc_verbose", number(component.cuda_ipc_verbose), 0, 100},
        {"eager_limit", module.btl_eager_limit, kibi, 128 * kibi},
        {"rndv_eager_limit", module.btl_rndv_eager_limit, 0, module.btl_eager_limit},
        {"max_send_size", module.btl_max_send_size, module.btl_eager_limit, 4 * mebi},
        {"accelerator_max_send_size", module.btl_accelerator_max_send_size,
         module.btl_max_send_size, 4 * mebi},
        {"get_limit", module.btl_get_limit, 4 * kibi, UINT64_MAX},
    };
    for (const bound &each : bounds) {
        if (each.value < each.least || each.value > each.most) {
            show_help("parameter out of range", each.name,
                      UINT64_MAX == each.value ? "a negative number"
                                               : std::to_string(each.value).c_str(),
                      static_cast<unsigned long long>(each.least),
                      static_cast<unsigned long long>(each.most));
            return false;
        }
    }
    if (!std::has_single_bit(component.fifo_size)) {
        show_help("fifo size", "fifo_size", component.fifo_size);
        return false;
    }
    if (!std::has_single_bit(component.fast_box_size)) {
        show_help("fifo size", "fast_box_size", component.fast_box_size);
        return false;
    }
    host_protocol chosen{};
    if (nullptr == component.host_protocol ||
        !parse_host_protocol(component.host_protocol, &chosen)) {
        show_help("host protocol",
                  nullptr == component.host_protocol ? "" : component.host_protocol);
        return false;
    }
    if (nullptr == component.backing_directory || '/' != component.backing_directory[0]) {
        show_help("backing directory",
                  nullptr == component.backing_directory ? "" : component.backing_directory);
        return false;
    }
    return true;
}

void register_counters()
{
    static constexpr struct {
        counter which;
        const char *name;
        const char *description;
    } variables[] = {
        {counter::get_messages, "get_messages",
         "Messages that this process fetched from a peer's device memory"},
        {counter::get_bytes, "get_bytes", "Bytes of those messages"},
        {counter::staged_messages, "staged_messages",
         "Messages that this process sent from device memory through host memory"},
        {counter::staged_bytes, "staged_bytes", "Bytes of those messages"},
        {counter::host_messages, "host_messages",
         "Messages that this process sent from host "
         "memory"},
        {counter::host_bytes, "host_bytes", "Bytes of those messages"},
        {counter::device_ring_messages, "device_ring_messages",
         "Of the messages fetched, those that came through a staging ring on the peer's device"},
        {counter::device_ring_bytes, "device_ring_bytes", "Bytes of those messages"},
        {counter::host_ring_messages, "host_ring_messages",
         "Of the messages fetched, those that came through a staging ring in host memory"},
        {counter::host_ring_bytes, "host_ring_bytes", "Bytes of those messages"},
        {counter::direct_host_messages, "direct_host_messages",
         "Of the messages fetched, those that the sender copied here itself, out of host "
         "memory that its program has page-locked"},
        {counter::direct_host_bytes, "direct_host_bytes", "Bytes of those messages"},
        {counter::pulled_host_bytes, "pulled_host_bytes",
         "Bytes that this process has read from a peer's host memory for its device by itself"},
        {counter::cooperative_copy_bytes, "cooperative_copy_bytes",
         "Of these, bytes that the sender has written"},
        {counter::pushed_host_bytes, "pushed_host_bytes",
         "Bytes that peers have written from their devices into this process's host memory"},
        {counter::single_copy_messages, "single_copy_messages",
         "Messages that this process read from a peer's host memory in a single copy"},
        {counter::single_copy_bytes, "single_copy_bytes", "Bytes of those messages"},
        {counter::stream_messages, "stream_messages",
         "Messages from a peer's host memory that were streamed to this process"},
        {counter::stream_bytes, "stream_bytes", "Bytes of those messages"},
        {counter::single_submissions, "single_submissions",
         "Submissions of copies one by one (cuMemcpyAsync)"},
        {counter::batch_submissions, "batch_submissions",
         "Submissions of many copies in one driver call (cuMemcpyBatchAsync)"},
        {counter::kernel_submissions, "kernel_submissions",
         "Submissions of many copies as one launch of the gather kernel"},
        {counter::mapped_allocations, "mapped_allocations",
         "Allocations of peers that are mapped here now"},
        {counter::mapped_bytes, "mapped_bytes", "Bytes of those allocations"},
        {counter::exported_allocations, "exported_allocations",
         "Device allocations of this process that peers can map now"},
    };
    static_assert(sizeof(component.counters[0]) == sizeof(unsigned long long));
    for (const auto &each : variables) {
        const bool is_level = each.which >= counter::mapped_allocations;
        (void)mca_base_component_pvar_register(
            &component.super.btl_version, each.name, each.description, OPAL_INFO_LVL_4,
            is_level ? MCA_BASE_PVAR_CLASS_LEVEL : MCA_BASE_PVAR_CLASS_COUNTER,
            MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG, nullptr, MCA_BASE_VAR_BIND_NO_OBJECT,
            static_cast<mca_base_pvar_flag_t>(MCA_BASE_PVAR_FLAG_READONLY |
                                              MCA_BASE_PVAR_FLAG_CONTINUOUS),
            nullptr, nullptr, nullptr, &component.counters[static_cast<unsigned>(each.which)]);
    }
}

} // namespace gpusm
