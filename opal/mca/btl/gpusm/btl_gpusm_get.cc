// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_get.cc: how ob1 fetches memory that a peer has registered. Device memory is mapped,
// once, and the copy given to the engine; what cannot be mapped is streamed.
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <iterator>
#include <mutex>
#include <tuple>
#include <utility>

using gpusm::get_request;
using gpusm::registration;
using gpusm::registration_around;

OBJ_CLASS_DECLARATION(get_request);
OBJ_CLASS_INSTANCE(get_request, opal_free_list_item_t, nullptr, nullptr);

namespace {

using gpusm::count;
using gpusm::counter;
using gpusm::status;

opal_free_list_t gets;
// Gets that have ended and whose callback is due; oldest first. Under the GPU lock.
get_request *ended = nullptr;
get_request **end_of_ended = &ended;

get_request *get_around(gpusm::copy_request *copy)
{
    return gpusm::enclosing<get_request>(copy, offsetof(get_request, copy));
}

void set_counter(counter which, unsigned long long value)
{
    mca_btl_gpusm_component.counters[static_cast<unsigned>(which)].store(value,
                                                                         std::memory_order_relaxed);
}

// What the layers count by themselves.
void tell_counters(const gpusm::gpu_side &side)
{
    static constexpr counter counters[] = {counter::single_submissions, counter::batch_submissions,
                                           counter::kernel_submissions};
    const gpusm::copy_engine::tally &made = side.copies.submissions();
    static_assert(std::size(counters) == std::tuple_size_v<gpusm::copy_engine::tally>);
    for (std::size_t way = 0; way < made.size(); ++way) {
        set_counter(counters[way], made[way]);
    }
    const gpusm::cache_statistics mapped = side.imports.statistics();
    set_counter(counter::mapped_allocations, mapped.entries);
    set_counter(counter::mapped_bytes, mapped.bytes);
    set_counter(counter::exported_allocations, side.exports.live());
}

} // namespace

namespace gpusm {

void setup_gets()
{
    setup_registrations();
    setup_free_list(&gets, sizeof(get_request), OBJ_CLASS(get_request), nullptr);
}

void release_gets()
{
    OBJ_DESTRUCT(&gets);
    release_registrations();
    release_bounces();
    ended = nullptr;
    end_of_ended = &ended;
}

void finish_get(get_request *get, status outcome)
{
    get->copy.outcome = outcome;
    get->next = nullptr;
    *end_of_ended = get;
    end_of_ended = &get->next;
}

// The copy of this process alone is over.
static void bounce_over(bounce *job)
{
    get_request *get = enclosing<get_request>(job, offsetof(get_request, bouncing));
    mca_btl_gpusm_component.gpu.load()->imports.release(std::exchange(get->mapping, nullptr));
    finish_get(get, job->failed ? status::driver_failed : status::ok);
}

// Copies into host memory a get whose source is mapped, in pieces; it ends in finish_get. False: it
// cannot.
static bool bounce_get(get_request *get)
{
    if (0 == get->copy.len_bytes || !can_bounce()) {
        return false;
    }
    if (share_get(get)) {
        return true;
    }
    bounce &job = get->bouncing;
    job = {};
    job.way = bounce_way::out;
    job.on = get->into;
    job.source = get->copy.source;
    job.destination = get->copy.destination;
    job.len_bytes = get->copy.len_bytes;
    job.wait_for = get->copy.wait_for;
    job.for_kernel = gpu_side::kernel_reads(*get->mapping, get->remote, *get->into);
    job.over = bounce_over;
    start_bounce(&job);
    return true;
}

// Host memory into which the driver copies without halting the caller. The question takes a
// microsecond; the processor copies so many bytes in less. What is page-locked in part only, the
// driver does not copy by itself.
static bool takes_copies(const get_request *get)
{
    constexpr std::size_t not_worth_asking_bytes = 8192;
    return get->copy.len_bytes > not_worth_asking_bytes &&
           mca_btl_gpusm_component.gpu.load()->is_page_locked(get->copy.destination,
                                                              get->copy.len_bytes);
}

status start_get(get_request *get)
{
    gpu_side &side = *mca_btl_gpusm_component.gpu;
    if (share_kind::staged == get->remote.kind || share_kind::host == get->remote.kind) {
        return stage_fetch(get);
    }
    status s = side.import(*get->endpoint, get->remote, *get->into, &get->mapping);
    if (status::not_ready == s) {
        return wait_for_descriptors(get);
    }
    if (status::unsupported == s) {
        cannot_map(get->endpoint, get->remote, refuse_reason::no_peer_access);
    }
    if (status::ok == s) {
        s = side.event_of(*get->endpoint, get->remote, *get->into, &get->copy.wait_for);
        if (status::ok != s) {
            side.imports.release(std::exchange(get->mapping, nullptr));
        }
    }
    if (status::ok == s) {
        get->copy.source =
            get->mapping->local_base + (get->remote_address - get->mapping->remote_base);
        get->copy.for_kernel =
            get->copy.for_kernel && gpu_side::kernel_reads(*get->mapping, get->remote, *get->into);
        if (!is_for_host(get) || takes_copies(get) || !bounce_get(get)) {
            side.copies.submit(*get->into, &get->copy);
        }
    }
    return s;
}

int progress_gets(bool busy)
{
    gpu_side *side = mca_btl_gpusm_component.gpu;
    if (nullptr == side) {
        return 0;
    }
    constexpr std::uint32_t calls_between_sweeps = 128;
    static std::uint32_t calls = 0;
    get_request *finished = nullptr;
    side->copies.hold(false);
    {
        // Another thread may be inside a driver call that takes milliseconds. Host messages are
        // not to wait for it, and this will be called again.
        const std::unique_lock guard(side->lock, std::try_to_lock);
        if (!guard.owns_lock()) {
            return 0; // copies that wait go out with the next call, or the next copy
        }
        if (0 == ++calls % calls_between_sweeps) {
            side->sweep();
            tell_counters(*side);
        }
        side->fds.progress();
        copy_request *copied = nullptr;
        if (!side->copies.idle()) {
            copied = side->copies.collect(busy);
            tell_counters(*side);
        }
        while (copied != nullptr) {
            copy_request *each = std::exchange(copied, copied->next);
            switch (static_cast<copy_part>(each->part_of)) {
            case copy_part::get: {
                get_request *get = get_around(each);
                if (status::ok != each->outcome && is_for_host(get) && bounce_get(get)) {
                    break;
                }
                side->imports.release(std::exchange(get->mapping, nullptr));
                finish_get(get, each->outcome);
                break;
            }
            case copy_part::stage:
                stage_copied(each);
                break;
            case copy_part::bounce:
                bounced(each);
                break;
            }
        }
        // What a window of messages starts goes out together, with the next call: every
        // submission takes the processor, which is what such messages wait for, microseconds.
        side->copies.hold(stages_several());
        (void)progress_stage();
        progress_bounces();
        side->copies.hold(false);
        finished = std::exchange(ended, nullptr);
        end_of_ended = &ended;
    }
    int completed = 0;
    while (finished != nullptr) {
        get_request *get = std::exchange(finished, finished->next);
        const bool copied = status::ok == get->copy.outcome;
        if (copied) {
            count(counter::get_messages, 1);
            count(counter::get_bytes, get->copy.len_bytes);
        } else {
            log_line(log_level::info, "a get of %zu bytes failed, fragments take its place: %s",
                     get->copy.len_bytes, to_string(get->copy.outcome));
        }
        // Any failure but NOT_AVAILABLE makes ob1 fetch that region by fragments instead.
        get->cbfunc(&mca_btl_gpusm.super, get->endpoint, get->local_address, get->local_handle,
                    get->cbcontext, get->cbdata, copied ? OPAL_SUCCESS : OPAL_ERROR);
        opal_free_list_return(&gets, &get->super);
        ++completed;
    }
    return completed;
}

} // namespace gpusm

// All gets but those between host memories.
[[gnu::noinline]] static int
get_by_gpu(mca_btl_base_module_t *, mca_btl_base_endpoint_t *endpoint, void *local_address,
           uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
           mca_btl_base_registration_handle_t *remote_handle, size_t size, int, int,
           mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext, void *cbdata)
{
    const gpusm::remote_handle remote = remote_handle->remote;
    const registration *local =
        nullptr == local_handle ? nullptr : registration_around(local_handle);
    gpusm::gpu_side *side = gpusm::gpu();
    // The handle is the peer's word.
    if (nullptr == side || !gpusm::covers(remote, remote_address, size)) {
        return OPAL_ERROR;
    }
    auto *get = reinterpret_cast<get_request *>(opal_free_list_get(&gets));
    if (nullptr == get) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    get->endpoint = endpoint;
    get->mapping = nullptr;
    get->target = nullptr;
    get->has_waited = false;
    get->local_address = local_address;
    get->remote_address = remote_address;
    get->remote = remote;
    get->local_handle = local_handle;
    get->cbfunc = cbfunc;
    get->cbcontext = cbcontext;
    get->cbdata = cbdata;
    get->copy = {}; // the free list gives what was there before
    get->copy.destination = reinterpret_cast<std::uint64_t>(local_address);
    get->copy.len_bytes = size;
    get->copy.part_of = static_cast<std::uint8_t>(gpusm::copy_part::get);
    // A kernel that writes behind an allocation takes the whole context down; the driver's copies
    // only fail. And it must be able to read the other side.
    get->copy.for_kernel = local != nullptr && get->copy.destination + size <= local->plain_until;
    get->into = nullptr == local ? nullptr : local->device;
    const std::lock_guard guard(side->lock);
    // What is streamed to host memory needs no context here.
    const bool staged =
        gpusm::share_kind::staged == remote.kind || gpusm::share_kind::host == remote.kind;
    status s = nullptr == get->into && !staged ? side->devices.for_host(&get->into) : status::ok;
    if (status::ok == s) {
        s = gpusm::start_get(get);
    }
    if (status::ok == s || status::busy == s) {
        return OPAL_SUCCESS;
    }
    gpusm::log_line(gpusm::log_level::info,
                    "a get of %zu bytes goes through host memory instead: %s", size,
                    gpusm::to_string(s));
    opal_free_list_return(&gets, &get->super);
    return gpusm::to_opal(s);
}

// This, get_by_gpu and get_host have the same parameters, so that one ends with a jump to the
// other.
extern "C" int mca_btl_gpusm_get(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint,
                                 void *local_address, uint64_t remote_address,
                                 mca_btl_base_registration_handle_t *local_handle,
                                 mca_btl_base_registration_handle_t *remote_handle, size_t size,
                                 int flags, int order, mca_btl_base_rdma_completion_fn_t cbfunc,
                                 void *cbcontext, void *cbdata)
{
    const bool into_host =
        nullptr == local_handle || nullptr == registration_around(local_handle)->device;
    if (gpusm::share_kind::host != remote_handle->remote.kind || !into_host) {
        return get_by_gpu(btl, endpoint, local_address, remote_address, local_handle, remote_handle,
                          size, flags, order, cbfunc, cbcontext, cbdata);
    }
    return gpusm::get_host(btl, endpoint, local_address, remote_address, local_handle,
                           remote_handle, size, flags, order, cbfunc, cbcontext, cbdata);
}
