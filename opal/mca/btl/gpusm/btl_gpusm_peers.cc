// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_peers.h"
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/reach.h"

#include <ctime>
#include <mutex>
#include <sched.h>
#include <string>
#include <utility>

namespace gpusm {

namespace {

constexpr std::int64_t between_questions_ns = 1000 * 1000;
// The runtime knows how a process has ended, and says so, if it acts.
constexpr std::int64_t runtime_acts_within_ns = std::int64_t{3} * 1000 * 1000 * 1000;
// At the end of this process, for memory and descriptors to map a peer.
constexpr std::int64_t reached_within_ns = std::int64_t{3} * 1000 * 1000 * 1000;
constexpr std::int64_t told_after_ns = std::int64_t{30} * 1000 * 1000 * 1000;

// Whether ob1 reports failed processes to the program, and needs to know which.
bool tolerates_failures()
{
    const int id = mca_base_var_find("ompi", "mpi", "ft", "enable");
    const bool *value = nullptr;
    return id >= 0 && OPAL_SUCCESS == mca_base_var_get_value(id, &value, nullptr, nullptr) &&
           value != nullptr && *value;
}

// Peers that have been closed, for what they have written or because they have ended: nothing more
// will come of their messages, and ob1 would wait for them for ever. It ends the job, or, where it
// is asked to tolerate that, reports the process as failed. One that Open MPI has not named so far
// is told of when messages of it have been lost.
void give_up_closed_peers(transport &of)
{
    for (std::size_t i = 0; mca_btl_base_endpoint_t *each = of.live_endpoint_at(i); ++i) {
        const peer &its = *each->peer;
        opal_proc_t *proc = each->proc.get();
        if (!its.closed() || its.has_left_unseen() ||
            (nullptr == proc && !its.has_lost_messages()) || std::exchange(each->given_up, true)) {
            continue;
        }
        if (mca_btl_gpusm.error_cb != nullptr && (proc != nullptr || !tolerates_failures())) {
            std::string why = "btl/gpusm: messages to and from process " +
                              std::to_string(its.identity().vpid) + " have ended";
            mca_btl_gpusm.error_cb(&mca_btl_gpusm.super, MCA_BTL_ERROR_FLAGS_FATAL, proc,
                                   why.data());
        }
    }
}

// Does a communicator of this process have that peer, and has it been used with it? Processes of
// one job always share one. One of another job is referred to by the group of each communicator and
// by ob1 for each that has been used with it, beside Open MPI's list of all processes and, it may
// be, that of those with endpoints, where it stays. MPI_Comm_disconnect tells no BTL.
bool is_connected(const mca_btl_base_endpoint_t *to)
{
    constexpr int references_of_lists = 2;
    opal_proc_t *proc = to->proc.get();
    return proc != nullptr && (proc->proc_name.jobid == OPAL_PROC_MY_NAME.jobid ||
                               proc->super.super.obj_reference_count > references_of_lists);
}

// False: nothing is to be done yet.
bool is_closed(mca_btl_base_endpoint_t *ended, std::int64_t now_ns)
{
    peer &its = *ended->peer;
    if (its.closed()) {
        return true;
    }
    const bool fails = !its.has_ended_in_order() && is_connected(ended);
    if (fails && now_ns - ended->end.seen_at_ns < runtime_acts_within_ns) {
        return false;
    }
    log_line(fails ? log_level::error : log_level::info, "process %u of job %08x has ended%s",
             static_cast<unsigned>(its.identity().vpid),
             static_cast<unsigned>(its.identity().jobid), fails ? " without MPI_Finalize" : "");
    ended->given_up = !fails; // else ob1 is to be told
    its.close();
    return true;
}

// False: something of it is in flight; again later.
bool give_back(mca_btl_base_endpoint_t *ended)
{
    transport &all = *ended->transport;
    peer &its = *ended->peer;
    if (!all.frags->take_back(ended) || !all.host->forget_peer(its) || !smsc_forget(ended)) {
        return false;
    }
    gpu_side *side = all.process.gpu_if_made();
    std::unique_lock<optional_mutex> guard;
    if (side != nullptr) {
        guard = std::unique_lock(side->lock, std::try_to_lock);
        if (!guard.owns_lock()) {
            return false;
        }
        side->fds.drop_owner(its.number);
    }
    if (!all.stage->forget_peer(its) ||
        (side != nullptr &&
         (!side->for_others.forget_peer(its) || !side->imports.drop_owner(its.number)))) {
        return false;
    }
    if (its.is_kept_mapped()) {
        return false;
    }
    all.process.own_node().forget(its);
    return its.unmap();
}

void lose_messages_to(peer &of, const char *why)
{
    log_line(log_level::error, "messages to process %u of job %08x are lost: %s",
             static_cast<unsigned>(of.identity().vpid), static_cast<unsigned>(of.identity().jobid),
             why);
    of.close();
}

// One of those (`to`: only that one) that are to read something that they could not read if this
// process ended now, after so long a wait; null: there is none. Closes those of whom that will
// never be.
const peer *still_to_read(transport &all, const mca_btl_base_endpoint_t *to, std::int64_t waited_ns)
{
    const peer *found = nullptr;
    for (std::size_t i = 0; mca_btl_base_endpoint_t *each = all.live_endpoint_at(i); ++i) {
        if (to != nullptr && each != to) {
            continue;
        }
        peer &its = *each->peer;
        const peer::at_stake stake = its.needs_segment_for();
        if (its.closed() || (peer::at_stake::nothing == stake && !all.frags->must_wait(each))) {
            continue;
        }
        if (its.reads_no_more()) {
            its.close();
        } else if (!its.attached() && waited_ns > reached_within_ns) {
            lose_messages_to(its, "this process ends, and could not connect to it");
        } else if (peer::at_stake::unmapped == stake && !all.process.own_node().own().has_file()) {
            lose_messages_to(its, "the file of this process's segment has been removed");
        } else {
            found = &its;
        }
    }
    return found;
}

} // namespace

void look_after_peers(transport &all)
{
    node &own = all.process.own_node();
    own.mend_inbox();
    give_up_closed_peers(all);
    const std::int64_t now_ns = coarse_now_ns();
    if (now_ns - all.asked_at_ns < between_questions_ns) {
        return;
    }
    all.asked_at_ns = now_ns;
    mca_btl_base_endpoint_t *asked = all.live_endpoint_at(all.next_to_ask++);
    if (nullptr == asked) {
        all.next_to_ask = 0;
        return;
    }
    peer_end &end = asked->end;
    if (!end.seen) {
        if (asked->peer->has_ended()) {
            // What it has read by then is taken back before the next question.
            end = {true, own.end_of_inbox(), now_ns};
            all.asked_at_ns = 0; // where many end, one a millisecond may be too few
        }
    } else if (own.has_read_all_of(*asked->peer, end.end_of_inbox) && is_closed(asked, now_ns) &&
               (asked->given_up || nullptr == asked->proc.get() ||
                asked->peer->has_left_unseen())) {
        all.asked_at_ns = give_back(asked) ? 0 : now_ns;
    }
}

void finish_sends(transport &all, const mca_btl_base_endpoint_t *to)
{
    // Somebody ends the process from within a callback, and what is under way there stays so.
    if (!all.progressing.try_lock()) {
        return;
    }
    constexpr int busy_looks = 64;
    const timespec pause{0, 500 * 1000};
    const std::int64_t begun_at_ns = coarse_now_ns();
    std::int64_t for_ns = 0;
    bool told = false;
    for (int looks = 0; const peer *waits_for = still_to_read(all, to, for_ns); ++looks) {
        // Of two processes that are here at the same time neither waits for the other one.
        all.process.own_node().own().tell(use_of_mpi::ending);
        (void)all.frags->progress();
        for_ns = coarse_now_ns() - begun_at_ns;
        if (for_ns > told_after_ns && !std::exchange(told, true)) {
            log_line(log_level::warn,
                     "the end of MPI waits for process %u of job %08x, which has not been in MPI "
                     "since it was sent messages",
                     static_cast<unsigned>(waits_for->identity().vpid),
                     static_cast<unsigned>(waits_for->identity().jobid));
        }
        if (looks < busy_looks) {
            (void)sched_yield();
        } else {
            (void)nanosleep(&pause, nullptr);
        }
    }
    all.progressing.unlock();
}

} // namespace gpusm
