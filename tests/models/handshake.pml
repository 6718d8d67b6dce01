// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// handshake.pml: ipc/handshake.h, who drives it (btl_gpusm_ipc.cc), and what it decides: by which
// way a message out of device memory goes (btl_gpusm_messages.cc, btl_gpusm_device.cc). Two
// processes send each other messages at once; each has a thread that sends and one that makes
// progress. Each may have no driver, may get a context at any time, and may end at any time.
// Calls that can fail do so, up to FAULTS times. Messages in the FIFO are in order; but control
// messages and ob1's are queues of their own, as these may pass those (frag_get_for_control).
// run_models.sh defines the numbers, and the mutations: NO_RETRY and the like, 0 or 1.
#if DEATHS
#define UNTIL_DEATH unless { gone[me] }
#else
#define UNTIL_DEATH
#endif
#define LONGEST 2 // handshake::longest_pause_messages
#define PEER (1 - me)
#define MESSAGES(of) ((of) == 0 -> OURS : THEIRS)

mtype = { idle, asked, ready, refused }; // ipc_state
mtype = { req, ack, cannot_map, can_map, not_ready, refuse }; // ipc_operation; cannot_map: ack, with a
                                                              // reason; can_map: with a handle only
mtype = { fragments, exported, staged, again, fetched, failed }; // ob1: EAGER/FRAG, RGET of two kinds, and
                                                                // `again` asks_for_answer, FIN, ACK

chan control[2] = [ROOM] of { mtype }; // to that process
chan ob1[2] = [ROOM] of { mtype };

bool driver[2], context[2], gone[2];
bool side[2];   // transport::gpu
bool locked[2]; // gpu_side::lock
mtype state[2] = idle;
byte pause[2], next_pause[2] = 1;
bool staged_device[2], no_ring[2]; // of the endpoint: its_mappings, rings
bool tries_again[2];               // the pause of its_mappings is over
byte fault = FAULTS;

// What is asserted of.
byte arrived[2], silent[2];
mtype said[2] = idle; // the last answer that has gone to that process
bool unsent[2];       // something that it should have been told, or should have told, has not gone

// What is done under the lock is one step, unless it waits.
#define LOCK atomic { !locked[me] -> locked[me] = true
#define UNLOCK locked[me] = false }
#define MAY_FAIL fault > 0 -> fault--
// gpu(): makes the side where there is a driver
#define GPU side[me] = driver[me]

// send_ipc_message: fails for want of memory or a peer slot, and when it is known that the peer has
// ended.
inline send_control(what)
{
    atomic {
        if
        :: nfull(control[PEER]) -> control[PEER]!what; sent = true
        :: gone[PEER] -> sent = false
        :: MAY_FAIL -> sent = false; unsent[PEER] = true
        fi
    }
}

inline reply(what)
{
    atomic { send_control(what); said[PEER] = (sent -> what : said[PEER]); sent = false }
}

// is_offered_to
inline offer_or_not()
{
    if
    :: atomic { state[me] == ready || state[me] == refused -> } // read without the lock
        offers = (state[me] == ready)
    :: atomic { state[me] != ready && state[me] != refused -> GPU }
        if
        :: side[me] ->
            LOCK;
            d_step { // handshake::step(gpu_message)
                if
                :: (state[me] == idle || state[me] == asked) && pause[me] > 0 ->
                    pause[me] = pause[me] - !NO_COUNTDOWN; silent[me]++;
                    assert(silent[me] <= 2 * LONGEST); // asks again after a pause
                :: (state[me] == idle || state[me] == asked) && pause[me] == 0 ->
                    state[me] = asked; pause[me] = LONGEST; asks = true; silent[me] = 0;
                :: else
                fi
            };
            if
            :: asks ->
                send_control(req);
                atomic { if :: !sent -> step_not_ready() :: else fi; }
                !WAITS_FOR_ANSWER || state[me] != asked;
                asks = false; sent = false
            :: else
            fi;
            offers = (state[me] != refused);
            UNLOCK
        :: else
        fi
    fi
}

// handshake::step(not_ready)
inline step_not_ready()
{
    state[me] = (NO_RETRY -> asked : idle);
    pause[me] = next_pause[me];
    next_pause[me] = (2 * next_pause[me] < LONGEST -> 2 * next_pause[me] : LONGEST)
}

proctype program(byte me)
{
    byte left = MESSAGES(me);
    bool asks, sent, offers;
    { do
    :: left == 0 -> break
    :: else ->
        offer_or_not(); // mca_btl_gpusm_register_mem
        if
        :: offers -> // register_device
            LOCK;
            if
            :: staged_device[me] -> ob1[PEER]!staged
            :: !staged_device[me] && tries_again[me] -> ob1[PEER]!again
            :: !staged_device[me] && !tries_again[me] -> ob1[PEER]!exported
            :: atomic { MAY_FAIL -> offers = false; } // the export
            fi;
            UNLOCK
        :: else
        fi;
        if
        :: !offers -> ob1[PEER]!fragments // prepare_src
        :: else
        fi;
        atomic { left--; offers = false; }
    od
    } UNTIL_DEATH
}

// ipc_message_from
inline control_message(what)
{
    if :: what == req -> GPU :: else fi;
    if
    :: what == req && !side[me] -> reply(refuse)
    :: what == req && side[me] && ANSWERS_WHEN_IDLE && state[me] != idle
    :: what == req && side[me] && !(ANSWERS_WHEN_IDLE && state[me] != idle) -> // answer
        LOCK;
        if
        :: context[me] -> reply(ack)
        :: else -> reply(not_ready)
        fi;
        UNLOCK
    :: what != req && side[me] ->
        LOCK;
        if // note_mapping
        :: what == cannot_map -> staged_device[me] = true; tries_again[me] = false
        :: what == can_map -> staged_device[me] = false; tries_again[me] = false
        :: else
        fi;
        d_step { // handshake::step, ipc_table
            if
            :: state[me] == asked && (what == ack || what == cannot_map || what == can_map) -> state[me] = ready;
            :: state[me] == asked && what == not_ready -> step_not_ready();
            :: state[me] == asked && what == refuse -> state[me] = refused;
            :: else
            fi
        };
        UNLOCK // tell_user
    :: what != req && !side[me] // dropped
    fi
}

// mca_btl_gpusm_get: get_device, start_get; what fails ob1 asks for in fragments.
inline get(kind)
{
    GPU;
    LOCK;
    if
    :: (!side[me] || !context[me]) && !NO_CHECK -> what = failed
    :: what == staged && (NO_CHECK || (side[me] && context[me])) -> what = fetched
    :: what == exported && (NO_CHECK || (side[me] && context[me])) -> what = fetched
    :: what == again && (NO_CHECK || (side[me] && context[me])) ->
        what = fetched; send_control(can_map); sent = false
    :: atomic { MAY_FAIL -> what = failed; } // a call of the driver, a stream
    :: (what == exported || what == again) && fault > 0 -> // the devices have no access to each other
        fault--;
        what = failed;
        no_ring[me] = true; // cannot_map()
        if :: !SAYS_NOTHING -> send_control(cannot_map) :: else fi;
        sent = false
    fi;
    UNLOCK;
    assert(what != fetched || (side[me] && context[me]));
    if :: what == fetched -> arrived[me]++ :: else fi;
    ob1[PEER]!what
}

proctype progress(byte me)
{
    mtype what;
    bool asks, sent, offers;
end_before_the_first: {
end:
    do
    :: control[me]?what -> control_message(what); what = 0
    :: ob1[me]?what ->
        if
        :: what == fragments -> arrived[me]++
        :: what == exported || what == staged || what == again -> get(what)
        :: what == failed && !NO_FALLBACK -> offer_or_not(); ob1[PEER]!fragments // prepare_src
        :: what == fetched || (what == failed && NO_FALLBACK)
        fi;
        what = 0
    od
    } UNTIL_DEATH
}

// All that happens by itself, and what holds when nothing moves any more.
active proctype world()
{
    byte me, deaths = DEATHS;
    atomic {
        for (me : 0 .. 1) {
            if :: driver[me] = true :: driver[me] = false fi;
            run program(me); run progress(me);
        }
    }
end:
    do
    :: d_step { driver[0] && !context[0] -> context[0] = true; }
    :: d_step { driver[1] && !context[1] -> context[1] = true; }
    :: d_step { PAUSES_END && staged_device[0] -> staged_device[0] = false; tries_again[0] = true; }
    :: d_step { deaths > 0 && !gone[0] -> deaths--; gone[0] = true; }
    :: timeout -> break
    od;
    for (me : 0 .. 1) {
        assert(arrived[PEER] <= MESSAGES(me) && (gone[me] || !locked[me]));
        if
        :: gone[0] || gone[1]
        :: else ->
            assert(arrived[PEER] == MESSAGES(me)); // each message once, by whichever way
            assert(empty(control[me]) && empty(ob1[me]));
            assert(state[me] != ready || said[me] == ack || no_ring[PEER]);
            assert(state[me] != refused || said[me] == refuse);
            assert(state[me] != asked || unsent[me]);
            assert(state[me] != idle || said[me] != refuse || unsent[PEER]);
            assert(!staged_device[me] || no_ring[PEER]);
            assert(staged_device[me] == no_ring[PEER] || unsent[me] || PAUSES_END);
        fi
    }
}
