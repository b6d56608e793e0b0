/* Weaker memory orders that the explorer's scenes do not tell from those that the core has. They stay
 * as they are: each says what its word is for, and on x86 none costs anything. SPARE: all of these at
 * once are explored too, and break nothing. DOUBLED: caught once all spare ones are weakened as well. */
#include "xp.h"

#define THREADS                                                                                             \
    "orders threads of one process around an attachment; they meet through locks of their own before they " \
    "share one, and what follows goes by locked operations"
#define LOAD_FENCES                                                                                         \
    "a locked operation reads the last value anyway; the load after it carries the fence, and that one is " \
    "caught"
#define END_REPEATS                                                                                       \
    "a stale word leaves something to the next look of a stream that ends, and who changed it wakes the " \
    "sleepers behind a fence"
#define CLOSE_WAKES                                                                                     \
    "whoever sleeps is woken after the close, and the wake-up orders the same; whoever does not looks " \
    "again"
#define SEQ_FOLLOWS "the sequence number that is raised after it is released as well, and that one is caught"
#define BYTES "the bytes of the header are not explored; a segment seen half-written fails its hash and is refused"
#define SCRIBBLED                                                                                         \
    "only a ring that somebody scribbled on gets further; there each word is judged again by the locked " \
    "operation that mends it"
#define LOCKED                                                                                             \
    "the owner's lock byte orders the same, and between processes that is the kernel's; what is swept is " \
    "swept by locked operations"
#define LOOKS_ON "looks on, or checks a ring at rest; nothing in the ring is decided by it"
#define CAS_DECIDES                                                                                       \
    "a stale word makes the locked operation after it fail, or is no claim of the dead, whose own words " \
    "the lock byte brings with it"
#define BRIDGES                                                                                                \
    "the locked operation by which a bridge takes an entry, the lock byte of one that is dead, and the fence " \
    "before a new one order the same"
#define PUT_BACK "only a full table's entry is put back with something in it, and no scene fills the table"
#define FENCED "a seq_cst fence beside it orders the same, and that one is caught"
#define NOBODY_READS "nobody goes on from this word to others by what it releases or acquires"
#define CLAIM_PAIR "the search for a hole and the claim of it acquire the same word"
#define SCAN_DECIDES                                                                                       \
    "the scan of the slot words acquires what the samples need; a stale batch word is looked at again or " \
    "fails the take"
#define SCANNED "the scan of the take has acquired the same words"

#define SPARE false
#define DOUBLED true

const xp_known xp_known_orders[] = {
    {"es_api_attach load acquire->relaxed 1", SPARE, THREADS},
    {"es_api_attach store release->relaxed 1", SPARE, THREADS},
    {"es_api_detach cas seq_cst->acq_rel 1", SPARE, LOAD_FENCES},
    {"enter fetch_add seq_cst->acq_rel 1", SPARE, LOAD_FENCES},
    {"enter fetch_sub release->relaxed 1", SPARE, THREADS},
    {"leave fetch_sub release->relaxed 1", SPARE, THREADS},
    {"es_slots_filling load acquire->relaxed 1", SPARE, END_REPEATS},
    {"es_slots_turn load acquire->relaxed 1", SPARE, END_REPEATS},
    {"es_slots_turn cas acq_rel->acquire 1", SPARE, END_REPEATS},
    {"es_slots_turn cas acq_rel->release 1", SPARE, END_REPEATS},
    {"es_slots_turn_free load acquire->relaxed 1", SPARE, END_REPEATS},
    {"es_slots_turn_free cas acq_rel->release 1", SPARE, END_REPEATS},
    {"es_drain_close load acquire->relaxed 1", SPARE, CLOSE_WAKES},
    {"es_drain_close store release->relaxed 1", SPARE, CLOSE_WAKES},
    {"claims_open load acquire->relaxed 1", SPARE, END_REPEATS},
    {"holds_nothing load acquire->relaxed 1", SPARE, END_REPEATS},
    {"nothing_left load acquire->relaxed 1", SPARE, END_REPEATS},
    {"nothing_left load acquire->relaxed 2", SPARE, END_REPEATS},
    {"lease_partial load acquire->relaxed 1", SPARE, END_REPEATS},
    {"lease_partial load acquire->relaxed 2", DOUBLED, END_REPEATS},
    {"es_slots_let_go load acquire->relaxed 1", SPARE, END_REPEATS},
    {"es_lease_give_back store release->relaxed 1", SPARE, SEQ_FOLLOWS},
    {"es_layout_format store release->relaxed 1", SPARE, BYTES},
    {"es_layout_check load acquire->relaxed 1", SPARE, BYTES},
    {"sweep_nobody load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"names_nobody load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"repair_batch load acquire->relaxed 2", SPARE, SCRIBBLED},
    {"repair_batch cas acq_rel->acquire 1", SPARE, SCRIBBLED},
    {"repair_batch cas acq_rel->release 1", SPARE, SCRIBBLED},
    {"repair_slot load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"repair_slot load acquire->relaxed 3", SPARE, SCRIBBLED},
    {"repair_slot load acquire->relaxed 4", SPARE, SCRIBBLED},
    {"repair_slot cas acq_rel->acquire 1", SPARE, SCRIBBLED},
    {"repair_slot cas acq_rel->release 1", SPARE, SCRIBBLED},
    {"announce_reopened load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"announce_reopened fetch_add release->relaxed 1", SPARE, SCRIBBLED},
    {"repair_tail load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"claimed_laps load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"repair_tail cas acq_rel->acquire 1", SPARE, SCRIBBLED},
    {"repair_tail cas acq_rel->release 1", SPARE, SCRIBBLED},
    {"repair_owners load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"repair_owners cas acq_rel->acquire 1", SPARE, SCRIBBLED},
    {"repair_owners cas acq_rel->release 1", SPARE, SCRIBBLED},
    {"repair_owners load acquire->relaxed 2", SPARE, SCRIBBLED},
    {"repair_owners cas acq_rel->acquire 2", SPARE, SCRIBBLED},
    {"repair_owners cas acq_rel->release 2", SPARE, SCRIBBLED},
    {"repair_head load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"repair_head load acquire->relaxed 2", SPARE, SCRIBBLED},
    {"repair_head cas acq_rel->acquire 1", SPARE, SCRIBBLED},
    {"repair_head cas acq_rel->release 1", SPARE, SCRIBBLED},
    {"es_repair fetch_add release->relaxed 1", SPARE, SCRIBBLED},
    {"es_repair fetch_add release->relaxed 2", SPARE, SCRIBBLED},
    {"take_byte cas acq_rel->acquire 1", SPARE, LOCKED},
    {"take_byte store release->relaxed 1", SPARE, LOCKED},
    {"es_locks_held load acquire->relaxed 1", SPARE, LOOKS_ON},
    {"es_locks_any load acquire->relaxed 1", SPARE, LOOKS_ON},
    {"raise_high cas acq_rel->acquire 1", SPARE, LOCKED},
    {"raise_high cas acq_rel->release 1", SPARE, LOCKED},
    {"es_owner_register load acquire->relaxed 1", SPARE, LOCKED},
    {"es_owner_register load acquire->relaxed 2", SPARE, LOCKED},
    {"es_owner_register store release->relaxed 1", SPARE, LOCKED},
    {"es_owner_free store release->relaxed 1", SPARE, LOCKED},
    {"es_owner_high load acquire->relaxed 1", SPARE, LOCKED},
    {"es_owner_next_dead load acquire->relaxed 1", SPARE, LOCKED},
    {"es_owner_next_dead load acquire->relaxed 2", SPARE, LOCKED},
    {"es_owner_learner_alive load acquire->relaxed 1", SPARE, LOOKS_ON},
    {"es_lease_give_back_all load acquire->relaxed 1", SPARE, CAS_DECIDES},
    {"es_lease_give_back_all cas acq_rel->acquire 1", SPARE, SEQ_FOLLOWS},
    {"es_lease_give_back_all cas acq_rel->release 1", SPARE, SEQ_FOLLOWS},
    {"is_claim_of load acquire->relaxed 1", SPARE, CAS_DECIDES},
    {"es_slots_reopen load acquire->relaxed 1", SPARE, CAS_DECIDES},
    {"es_slots_reopen cas acq_rel->release 1", SPARE, SEQ_FOLLOWS},
    {"es_wake_alarm fetch_or acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_alarm fetch_or acq_rel->release 1", SPARE, END_REPEATS},
    {"live load acquire->relaxed 1", SPARE, LOOKS_ON},
    {"valid_slot load acquire->relaxed 1", SPARE, LOOKS_ON},
    {"valid_slot load acquire->relaxed 2", SPARE, LOOKS_ON},
    {"es_valid load acquire->relaxed 1", SPARE, LOOKS_ON},
    {"es_valid load acquire->relaxed 2", SPARE, LOOKS_ON},
    {"claim_word cas acq_rel->acquire 1", SPARE, NOBODY_READS},
    {"claim_word cas acq_rel->release 1", SPARE, CLAIM_PAIR},
    {"was_committed load acquire->relaxed 1", SPARE, BRIDGES},
    {"es_journal_settle load acquire->relaxed 1", SPARE, BRIDGES},
    {"es_journal_settle cas acq_rel->release 1", SPARE, BRIDGES},
    {"turn cas acq_rel->acquire 1", SPARE, BRIDGES},
    {"turn cas acq_rel->release 1", SPARE, BRIDGES},
    {"find load acquire->relaxed 1", DOUBLED, BRIDGES},
    {"find store release->relaxed 1", SPARE, PUT_BACK},
    {"take_new store release->relaxed 1", SPARE, PUT_BACK},
    {"take_entry load acquire->relaxed 1", SPARE, BRIDGES},
    {"es_monitor_next_remote load acquire->relaxed 1", SPARE, BRIDGES},
    {"es_producer_committed_from load acquire->relaxed 1", SPARE, BRIDGES},
    {"claim_reopened load acquire->relaxed 1", DOUBLED, CLAIM_PAIR},
    {"is_closed load acquire->relaxed 1", SPARE, CLOSE_WAKES},
    {"es_wake_learners exchange acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_learners exchange acq_rel->release 1", SPARE, FENCED},
    {"es_wake_learners fetch_add acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_learners fetch_add acq_rel->release 1", SPARE, FENCED},
    {"es_wake_producers exchange acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_producers exchange acq_rel->release 1", SPARE, FENCED},
    {"es_wake_producers fetch_add acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_producers fetch_add acq_rel->release 1", SPARE, FENCED},
    {"es_wake_all fetch_add acq_rel->release 1", SPARE, FENCED},
    {"es_wake_all fetch_add acq_rel->release 2", SPARE, FENCED},
    {"es_producer_commit fetch_add acq_rel->release 1", SPARE, FENCED},
    {"es_blocking_claim load acquire->relaxed 1", SPARE, FENCED},
    {"es_blocking_claim load acquire->relaxed 2", SPARE, THREADS},
    {"es_lease_take cas acq_rel->release 1", SPARE, SCAN_DECIDES},
    {"look_from_head load acquire->relaxed 1", SPARE, SCAN_DECIDES},
    {"look_from_head load acquire->relaxed 2", SPARE, SCAN_DECIDES},
    {"look_from_head cas acq_rel->acquire 1", SPARE, NOBODY_READS},
    {"look_from_head cas acq_rel->release 1", SPARE, NOBODY_READS},
    {"look_everywhere load acquire->relaxed 1", SPARE, SCAN_DECIDES},
    {"es_lease_release load acquire->relaxed 1", SPARE, CLOSE_WAKES},
    {"released_word load acquire->relaxed 1", SPARE, CLOSE_WAKES},
    {"es_lease_committed load acquire->relaxed 1", SPARE, SCANNED},
    {"look_or_finish load acquire->relaxed 1", SPARE, CLOSE_WAKES},
    {"es_blocking_take load acquire->relaxed 1", SPARE, FENCED},
    {"es_blocking_take load acquire->relaxed 2", SPARE, THREADS},
    {"es_monitor_next_owner load acquire->relaxed 1", SPARE, LOOKS_ON},
    {0},
};
