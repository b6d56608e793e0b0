/* Weaker memory orders whose weakening no scene shows. The core keeps the stronger ones: each says what its word is
 * for, and on x86 none costs anything.
 *
 * SPARE: all spare orders weakened at once are explored too, and nothing breaks.
 * DOUBLED: caught only after all spare orders are weakened as well. */
#include "xp.h"

#define THREADS                                                                                                  \
    "only orders threads of one process around an attachment; their own locks order them before they share it, " \
    "and locked operations order what follows"
#define LOAD_FENCES \
    "a locked operation reads the last value anyway; the next load carries the fence, and that load is caught"
#define COMPARED "the word is compared with an earlier one, and nothing behind it is read"
#define TAKE_FENCED \
    "es_api_take() has a fence behind the words that the same thread has read, before it reads the samples"
#define END_REPEATS \
    "a drain that reads a stale word looks again, and the process that changed the word wakes sleepers behind a fence"
#define CLOSE_WAKES \
    "a sleeper is woken after the close, and the wake-up orders the same; a process that is awake looks again"
#define SEQ_FOLLOWS "a sequence number is raised after it, also with release, and that order is caught"
#define BYTES "header bytes are not explored; a half-written segment fails its hash and is refused"
#define SCRIBBLED \
    "matters only on a scribbled ring, where the locked operation that repairs a word checks the word again"
#define LOCKED \
    "the owner's lock byte orders the same, and between processes the kernel keeps it; a sweep uses locked operations"
#define LOOKS_ON "only observes, or checks a ring at rest; the ring decides nothing by it"
#define CAS_DECIDES                                                                                                   \
    "a stale word makes the next locked operation fail, or is not a dead owner's claim; the lock byte brings a dead " \
    "owner's words"
#define BRIDGES                                                                                                        \
    "the same is ordered by the locked operation that takes an entry, by a dead bridge's lock byte, and by the fence " \
    "before a new entry"
#define PUT_BACK "an entry with contents is put back only when the table is full, and no scene fills the table"
#define FENCED "a seq_cst fence next to it orders the same, and that fence is caught"
#define SEQUENCE \
    "a locked operation goes on with the release sequence of those before it, and needs no more of what they saw"
#define CLAIM_PAIR "the search for a re-opened slot and the claim of it acquire the same word"
#define SCAN_DECIDES \
    "the scan of the slot words acquires what the samples need; a stale batch word is loaded again or fails the take"
#define SCANNED "the scan of the take has acquired the same words"

#define LATEST_FOLLOWS \
    "readers come through latest, which is stored after it, also with release, and that order is caught"

#define SPARE false
#define DOUBLED true

const xp_known xp_known_orders[] = {
    {"es_api_attach load acquire->relaxed 1", SPARE, THREADS},
    {"es_api_attach store release->relaxed 1", SPARE, THREADS},
    {"es_api_attach store release->relaxed 2", SPARE, THREADS},
    {"es_api_attach store release->relaxed 3", SPARE, THREADS},
    {"es_api_detach cas seq_cst->acq_rel 1", SPARE, LOAD_FENCES},
    {"es_api_detach exchange seq_cst->acq_rel 1", SPARE, LOAD_FENCES},
    {"es_api_detach exchange seq_cst->acq_rel 2", SPARE, LOAD_FENCES},
    {"es_api_stop exchange seq_cst->acq_rel 1", SPARE, LOAD_FENCES},
    {"es_api_retire cas seq_cst->acq_rel 1", SPARE, LOAD_FENCES},
    {"es_api_retire exchange seq_cst->acq_rel 1", SPARE, LOAD_FENCES},
    {"enter_unless fetch_add seq_cst->acq_rel 1", SPARE, LOAD_FENCES},
    {"enter_unless fetch_sub release->relaxed 1", SPARE, THREADS},
    {"es_call_leave fetch_sub release->relaxed 1", SPARE, THREADS},
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
    {"lease_partial load acquire->relaxed 2", SPARE, TAKE_FENCED},
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
    {"claimed_laps load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"repair_tail cas acq_rel->acquire 1", SPARE, SCRIBBLED},
    {"repair_tail cas acq_rel->release 1", SPARE, SCRIBBLED},
    {"repair_owners load acquire->relaxed 1", SPARE, SCRIBBLED},
    {"repair_owners cas acq_rel->acquire 1", SPARE, SCRIBBLED},
    {"repair_owners cas acq_rel->release 1", SPARE, SCRIBBLED},
    {"repair_owners load acquire->relaxed 2", SPARE, SCRIBBLED},
    {"repair_owners cas acq_rel->acquire 2", SPARE, SCRIBBLED},
    {"repair_owners cas acq_rel->release 2", SPARE, SCRIBBLED},
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
    {"es_slots_reopen load acquire->relaxed 1", SPARE, CAS_DECIDES},
    {"es_slots_reopen cas acq_rel->release 1", SPARE, SEQ_FOLLOWS},
    {"es_wake_alarm fetch_or acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_alarm fetch_or acq_rel->release 1", SPARE, END_REPEATS},
    {"live load acquire->relaxed 1", SPARE, LOOKS_ON},
    {"valid_slot load acquire->relaxed 1", SPARE, LOOKS_ON},
    {"valid_slot load acquire->relaxed 2", SPARE, LOOKS_ON},
    {"es_valid load acquire->relaxed 1", SPARE, LOOKS_ON},
    {"es_valid load acquire->relaxed 2", SPARE, LOOKS_ON},
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
    {"oldest_reopened load acquire->relaxed 1", DOUBLED, CLAIM_PAIR},
    {"is_closed load acquire->relaxed 1", SPARE, CLOSE_WAKES},
    {"es_wake_learners exchange acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_learners exchange acq_rel->release 1", SPARE, FENCED},
    {"es_wake_learners fetch_add acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_learners fetch_add acq_rel->release 1", SPARE, FENCED},
    {"es_wake_producer exchange acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_producer exchange acq_rel->release 1", SPARE, FENCED},
    {"es_wake_producer fetch_add acq_rel->acquire 1", SPARE, FENCED},
    {"es_wake_producer fetch_add acq_rel->acquire 2", SPARE, FENCED},
    {"es_wake_producer fetch_add acq_rel->release 1", SPARE, FENCED},
    {"es_wake_producer fetch_add acq_rel->release 2", SPARE, FENCED},
    {"es_wake_all fetch_add acq_rel->release 1", SPARE, FENCED},
    {"es_wake_all fetch_add acq_rel->release 2", SPARE, FENCED},
    {"es_producer_commit_run fetch_add acq_rel->release 1", SPARE, FENCED},
    {"claim_or_sleep load acquire->relaxed 1", SPARE, FENCED},
    {"claim_or_sleep load acquire->relaxed 2", SPARE, THREADS},
    {"arm load acquire->relaxed 1", SPARE, FENCED},
    {"any_detached load acquire->relaxed 1", SPARE, THREADS},
    {"es_lease_left_to_others load acquire->relaxed 1", SPARE, COMPARED},
    {"es_lease_left_to_others load acquire->relaxed 2", SPARE, COMPARED},
    {"es_lease_take cas acq_rel->release 1", SPARE, SCAN_DECIDES},
    {"look_from_head load acquire->relaxed 1", SPARE, SCAN_DECIDES},
    {"look_from_head load acquire->relaxed 2", SPARE, SCAN_DECIDES},
    {"look_from_head cas acq_rel->release 1", SPARE, SEQUENCE},
    {"smallest_below load acquire->relaxed 1", SPARE, SCAN_DECIDES},
    {"es_lease_tell load acquire->relaxed 1", SPARE, CLOSE_WAKES},
    {"released_word load acquire->relaxed 1", SPARE, CLOSE_WAKES},
    {"es_lease_committed load acquire->relaxed 1", SPARE, SCANNED},
    {"look_or_finish load acquire->relaxed 1", SPARE, CLOSE_WAKES},
    {"es_blocking_take load acquire->relaxed 1", SPARE, FENCED},
    {"es_blocking_take load acquire->relaxed 2", SPARE, THREADS},
    {"es_version_publish store release->relaxed 1", SPARE, LATEST_FOLLOWS},
    {"es_version_lease cas acq_rel->acquire 1", SPARE, SEQUENCE},
    {"es_version_wake_all fetch_add acq_rel->release 1", SPARE, FENCED},
    {"es_version_wait load acquire->relaxed 1", SPARE, FENCED},
    {"es_version_wait load acquire->relaxed 2", SPARE, CLOSE_WAKES},
    {"es_version_wait load acquire->relaxed 3", SPARE, THREADS},
    {"tell exchange acq_rel->acquire 1", SPARE, FENCED},
    {"tell exchange acq_rel->release 1", SPARE, FENCED},
    {"es_monitor_next_owner load acquire->relaxed 1", SPARE, LOOKS_ON},
    {0},
};
