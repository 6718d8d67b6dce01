// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fifo.pml: shm/fifo.h, and what peer.cc and node.h do around it: a sender fills a fragment, posts
// it and uses it again when the reader has given it back; the reader takes messages, and mends.
//
// Each access to shared memory is a step of its own. Senders below MORTAL may end before any of
// theirs. Whoever would only ask again until something changes waits for the change, and nothing
// else repeats: so "no cycle, and nobody who waits" says that nobody waits for ever. Memory is
// sequentially consistent here; weaker orders are for node_thread_test under ThreadSanitizer.
// run_models.sh defines the numbers, and the mutations: NO_HELP and the like, 0 or 1.
#define TICKETS (2 * SLOTS * LAPS)
#define FIRST (TICKETS - SLOTS) // so tickets and laps begin anew after the first lap
#define NOBODY 7
#define AT(ticket) ((ticket) % SLOTS)
#define LAP_OF(ticket) ((ticket) / SLOTS % LAPS)
#define EMPTY(lap) ((lap) % LAPS * 64)
#define FULL(lap, sender, granule) (EMPTY(lap) + (sender) * 8 + (granule))
#define GRANULE(word) ((word) % 8)
#define SENDER(word) ((word) / 8 % 8)
#define USED_UP(word, lap) ((word) / 64 == (GRANULE(word) == 0 -> ((lap) + 1) % LAPS : (lap)))

byte tail = FIRST, head = FIRST; // the head is the reader's own
short slot[SLOTS] = EMPTY(LAP_OF(FIRST));
byte payload[SENDERS * FRAGMENTS], sequence[SENDERS * FRAGMENTS]; // of the fragments
byte consumed[SENDERS];
byte next_sequence[SENDERS]; // the reader's: peer::next_sequence
byte posted[SENDERS], over;  // complete posts; senders that have ended, by themselves or not

// One step of a sender, once it may be done; before it, the sender may be killed.
#define STEP(may) if :: me < MORTAL -> goto killed :: d_step { (may) ->
#define END } fi
#define FILL STEP(true) payload[mine] = next + 1; END; STEP(true) sequence[mine] = next; END

proctype sender(byte me)
{
    byte next, ticket, mine;
    short seen;
    bool put, busy, none_free;
    do
    :: next == MESSAGES -> break
    :: else ->
        // frag_get, peer::take_back: a fragment that the reader is done with
        STEP(next < consumed[me] + FRAGMENTS) mine = me * FRAGMENTS + next % FRAGMENTS; END;
        if :: !VANDAL && !PUBLISH_BEFORE_FILL -> FILL :: else fi;
        do // fifo_post; after `busy` it is peer::flush that comes back
        :: STEP(true) ticket = tail; END;
            if // the usual queue
            :: CLAIM_THEN_PUBLISH ->
                STEP(slot[AT(tail)] == EMPTY(LAP_OF(tail)))
                    ticket = tail; tail = (tail + 1) % TICKETS;
                END
            :: else
            fi;
            STEP(true) // the compare-and-swap of the slot's word
                seen = slot[AT(ticket)];
                put = seen == EMPTY(LAP_OF(ticket));
                busy = !put && !USED_UP(seen, LAP_OF(ticket));
                if
                :: put || (busy && OVERWRITE_WHEN_FULL) ->
                    assert(GRANULE(seen) == 0); // nothing is stored over a message
                    slot[AT(ticket)] = FULL(LAP_OF(ticket), me, 1 + next % FRAGMENTS);
                    posted[me]++;
                :: else -> none_free = GRANULE(slot[0]) && GRANULE(slot[SLOTS - 1]);
                fi;
            END;
            if
            :: busy ->
                STEP(true) busy = NO_SECOND_LOOK || tail == ticket; END;
                assert(!busy || none_free || VANDAL); // busy means full
                STEP(!busy || slot[AT(ticket)] != seen || tail != ticket) busy = false; END
            :: else ->
                // The tail: for oneself, or for somebody who has not moved it and may never do.
                STEP(true)
                    if :: (put || !NO_HELP) && tail == ticket -> tail = (tail + 1) % TICKETS; :: else fi;
                END;
                if :: put -> break :: else fi
            fi
        od;
        if :: PUBLISH_BEFORE_FILL -> FILL :: else fi;
        atomic { next++; ticket = 0; seen = 0; put = false; none_free = false; mine = 0; }
    od;
killed:
    over++
}

#define DUE slot[AT(head)]
#define RIGHT EMPTY(LAP_OF(head))
#define IN_ORDER (DUE == RIGHT && tail == head)
proctype reader()
{
    short seen;
    byte from, at, number, seen_tail, each, mends = MENDS;
    bool ahead, in_order;
    do
    :: d_step { GRANULE(DUE) != 0 -> seen = DUE; } // fifo_reader::peek
        d_step { // pop
            DUE = EMPTY(LAP_OF(head + SLOTS));
            head = (head + 1) % TICKETS;
            from = SENDER(seen);
            at = from * FRAGMENTS + GRANULE(seen) - 1;
        }
        if
        :: !VANDAL -> // node::take_fragment
            if :: CONSUMED_TOO_EARLY -> consumed[from] = next_sequence[from] + 1 :: else fi;
            number = sequence[at];
            assert(number == next_sequence[from]); // nothing lost, twice or overtaken
            assert(payload[at] == number + 1);     // nor written while it is read
            d_step { next_sequence[from] = number + 1; consumed[from] = number + 1; }
        :: else // it is nobody's or may not be the sender's next, who then is closed
        fi;
        d_step { seen = 0; from = 0; at = 0; number = 0; }
    :: mends > 0 || (VANDAL && !NO_MEND && GRANULE(DUE) == 0 && !IN_ORDER) ->
        mends = (mends > 0 -> mends - 1 : 0);
        if // node::mend_inbox, fifo_reader::mend
        :: MEND_LOOKS_AT_SLOT_FIRST -> seen = DUE; seen_tail = tail
        :: else -> seen_tail = tail; seen = DUE
        fi;
        if
        :: GRANULE(seen) != 0 || (seen == RIGHT && seen_tail == head)
        :: else ->
            d_step {
                in_order = seen == RIGHT && (head + TICKETS - seen_tail) % TICKETS <= 1;
                ahead = (seen_tail + TICKETS - head - 1) % TICKETS < SLOTS;
            }
            if
            :: d_step { DUE == seen -> DUE = (ahead -> EMPTY(LAP_OF(head + SLOTS)) : RIGHT); }
                if
                :: ahead -> head = (head + 1) % TICKETS
                :: !ahead -> d_step { if :: tail == seen_tail -> tail = head; :: else fi; }
                fi
            :: DUE != seen
            fi;
            assert(in_order || VANDAL) // else mend() tells of an overwritten FIFO
        fi;
        d_step { seen = 0; seen_tail = 0; ahead = false; in_order = false; }
    :: over == SENDERS && (VANDAL -> IN_ORDER : GRANULE(DUE) == 0) -> break
    od;
    for (each : 0 .. SENDERS - 1) {
        assert(each < MORTAL || posted[each] == MESSAGES);
        assert(next_sequence[each] == posted[each] || VANDAL); // all, of killed senders, too
    }
}

// A broken process stores anything over the tail or a slot, once.
proctype vandal()
{
    byte where, what;
    if
    :: select(what : 0 .. TICKETS - 1); tail = what
    :: select(what : 0 .. LAPS - 1); select(where : 0 .. SLOTS - 1);
        if :: slot[where] = EMPTY(what) :: slot[where] = FULL(what, NOBODY, 1) fi
    fi
}

init
{
    byte each;
    atomic {
        for (each : 0 .. SENDERS - 1) { run sender(each); }
        run reader();
        if :: VANDAL -> run vandal() :: else fi
    }
}
