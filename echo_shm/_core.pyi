"""The C core, as cffi builds it from the headers that ``_build.py`` names. A test compares this file with them.

Outside this file, the names other than ``ffi`` and ``lib`` exist for type checkers only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, overload

import numpy.typing as npt
from typing_extensions import Buffer

_C = TypeVar("_C", bound=CData)
_R = TypeVar("_R")

class CData:
    """A C value that Python only hands on."""

class CType(Generic[_C]):
    """A parsed C type."""

class Numbers(CData):
    """A pointer to, or an array of, integers."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...
    def __iter__(self) -> Iterator[int]: ...

class Address(CData):
    """A ``uintptr_t``."""

    def __int__(self) -> int: ...

class Ring(CData):
    """``es_ring *``."""

class Locks(CData):
    """``es_locks *``."""

class ReplayHold(CData):
    """``es_replay *``."""

class Bytes:
    """The bytes of a C value."""

    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __setitem__(self, index: slice, value: bytes, /) -> None: ...

#: One ``void *`` for each leaf.
Pointers: TypeAlias = CData | Sequence[CData]

class Geometry(CData):
    """``es_geometry *``."""

    batch_size: int
    num_batches: int
    reap_interval_ns: int
    max_producers: int
    max_remotes: int
    num_leaves: int
    schema_size: int
    flags: int
    zero: int

class Identity(CData):
    """``es_identity *``."""

    role: int
    index: int
    pid: int
    pid_namespace: int
    start_time: float

class Watch(CData):
    """``es_watch *``."""

    ring: Ring
    what: int

class OwnerInfo(CData):
    """``es_owner_info *``."""

    id: Identity
    samples: int
    blocked: int
    blocked_ns: int
    waiting: int
    is_bridge: int

class RemoteInfo(CData):
    """``es_remote_info *``."""

    index: int
    state: int
    bridge: int
    committed: int
    bytes: int
    frames: int
    since_ns: int
    peer: CData

class HistSummary(CData):
    """``es_histogram_summary *``."""

    count: int
    min_ns: int
    max_ns: int
    sum_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int

class Snapshot(CData):
    """``es_snapshot *``."""

    batch: int
    round: int
    length: int
    store_size: int
    occupancy: int
    occupancy_max: int
    samples_inserted: int
    batches_taken: int
    push_blocked: int
    producers_waiting: int
    notify_count: int
    active_producers: int
    active_remotes: int
    refused_remotes: int
    dead_producers: int
    stalled_producers: int
    reopened_slots: int
    too_old: int
    latest_version: int
    age_max: int
    age_mean: float
    learner_wait_ns: int
    cas_success: int
    cas_failure: int
    reservation_retries: int
    look: HistSummary
    copy: HistSummary
    dwell: HistSummary
    sweep_due: int
    closed: int
    shared: int

class SelectorConfig(CData):
    """``es_selector_config *``."""

    kind: int
    zero: int
    parameter: float
    beta: float
    target: float
    share: float
    hot_size: int
    age: int
    max_age: int

class CustomSelector(CData):
    """``es_custom_selector *``."""

    self: CData
    insert: CData
    update: CData
    remove: CData
    draw: CData
    probability: CData
    refuse: CData

class CustomCalls(CData):
    """``es_custom_selector[]``."""

    def __setitem__(self, index: int, value: Mapping[str, CData], /) -> None: ...

class ItemConfig(CData):
    """``es_item_config *``."""

    kind: int
    length: int
    period: int
    before: int
    padded: int
    num_outputs: int
    gamma: float

class Output(CData):
    """``es_output *``."""

    kind: int
    leaf: int
    count: int
    width: int
    from_: int
    repeat: int

class ItemColumn(CData):
    """``es_item_column *``."""

    back: int
    stride: int

class Outputs(CData):
    """``es_output[]``. It owns its items."""

class StoreParts(CData):
    """``es_store_parts *``."""

    leaf_sizes: Numbers
    tables: TableConfigs
    outputs: Outputs
    schema: CData

class TableConfig(CData):
    """``es_table_config *``."""

    name: CData
    sampler: SelectorConfig
    remover: SelectorConfig
    max_size: int
    max_times_sampled: int
    min_size: int
    ratio: float
    min_diff: float
    max_diff: float
    max_parked: int
    replacement: int
    is_protected: int
    item: ItemConfig

class TableConfigs(CData):
    """``es_table_config[]``. It owns what its items are in."""

    def __getitem__(self, index: int, /) -> TableConfig: ...
    def __iter__(self) -> Iterator[TableConfig]: ...

class StoreGeometry(CData):
    """``es_store_geometry *``."""

    capacity: int
    max_items: int
    seed: int
    num_leaves: int
    num_tables: int
    schema_size: int
    inbox_slots: int
    update_slots: int
    columns: int
    spare: int
    notes: int

class BatchArrays(CData):
    """``es_batch_arrays *``."""

    leaves: CData
    key: CData
    probability: CData
    priority: CData
    weight: CData
    times_sampled: CData
    table_size: CData
    age: CData
    version: CData

class Trouble(CData):
    """``es_trouble *``."""

    table: int
    zero: int
    index: int

class InboxHead(CData):
    """``es_inbox_head *``."""

    stream: int
    number: int
    index: int
    environment: int
    episode: int
    flags: int

class UpdateBlock(CData):
    """``es_update_block *``."""

    table: int
    kind: int
    n: int
    keys: CData
    priorities: CData

class Ask(CData):
    """``es_ask *``."""

    batch_size: int
    num_batches: int
    world_size: int
    table: int
    zero: int

class Turn(CData):
    """``es_turn *``."""

    steps: int
    updates: int
    table: int
    sweep_due: int
    refused: int
    parked: int
    ask: Ask
    batches: CData

class StoredStep(CData):
    """``es_stored_step *``."""

    arrival: int
    stream: int
    number: int
    record: int
    version: int
    index: int
    environment: int
    episode: int
    flags: int

class Places(CData):
    """``es_places *``."""

    tail: int
    owners_high: int
    learner_sleeps: int
    slots: int
    owners: int
    owner_bytes: int
    state: int
    role: int
    pid: int
    start_time: int
    samples: int
    blocked_ns: int
    waiting: int
    batches: int
    batch_bytes: int
    word: int
    leased_ns: int

class Peeked(CData):
    """``es_peeked *``."""

    records: int
    looked: int
    found: int

class CTableInfo(CData):
    """``es_table_info *``."""

    size: int
    inserted: int
    sampled: int
    deleted: int
    evicted: int
    parked: int
    episodes: int
    bytes: int
    drawn_before: int
    highest: float
    effective_sample_size: float
    mass: float
    least_weight: float
    log_mass: float
    least_log_weight: float
    min_diff: float
    max_diff: float
    can_sample: int
    can_insert: int
    temperature: Sequence[float]
    part_effective: Sequence[float]
    hot: int
    moved: int
    aged: int
    updates: int

class SaveConfig(CData):
    """``es_save_config *``."""

    directory: int
    records: int
    drawn: int
    zero: int
    first: int
    rows: int

class CEnvironment(CData):
    """``es_environment *``."""

    number: int
    index: int
    episode: int
    resets: int
    named: int

class Vector(CData):
    """``es_vector *``."""

    leaves: Pointers
    finals: Pointers
    terminated: CData
    truncated: CData
    environments: CData
    priorities: CData
    n: int
    skips_resets: int
    zero: int

class SaveState(CData):
    """``es_save_state *``."""

    arrivals: int
    steps: int
    row_size: int
    stream: int
    number: int
    episode: int
    index: int
    records_size: int

class ChunkHeader(CData):
    """``es_chunk_header *``."""

    magic: int
    version: int
    zero: int
    row_size: int
    rows: int
    number: int
    writer: CData
    check: int

class CRestored(CData):
    """``es_restored *``."""

    steps: int
    steps_dropped: int
    items: Numbers
    items_dropped: Numbers
    min_diff: Sequence[float]
    max_diff: Sequence[float]
    has_limits: Sequence[int]

class Save(CData):
    """``es_save *``."""

class PrefixNodes(CData):
    """``es_prefix_index *``."""

class Insertion(CData):
    """``es_prefix_insertion *``."""

    known: int
    taken: int
    evicted: int
    end: int
    zero: int

class ffi:
    NULL: Final[CData]

    @overload
    @staticmethod
    def new(cdecl: CType[_C], /) -> _C: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_snapshot *"], /) -> Snapshot: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_owner_info *"], /) -> OwnerInfo: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_remote_info *"], /) -> RemoteInfo: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_identity *"], init: Mapping[str, float], /) -> Identity: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_geometry *"], init: Mapping[str, int] = ..., /) -> Geometry: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_store_geometry *"], init: Mapping[str, int] = ..., /) -> StoreGeometry: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_table_config[]"], init: Sequence[Mapping[str, Any]], /) -> TableConfigs: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_output[]"], init: Sequence[Mapping[str, int]], /) -> Outputs: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_store_parts *"], init: Mapping[str, CData], /) -> StoreParts: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_custom_selector[]"], init: Sequence[Mapping[str, CData]], /) -> CustomCalls: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_watch[]"], init: Sequence[Mapping[str, Any]], /) -> Watch: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_trouble *"], /) -> Trouble: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_chunk_header *"], /) -> ChunkHeader: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_restored *"], /) -> CRestored: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_peeked *"], /) -> Peeked: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_places *"], /) -> Places: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_prefix_insertion *"], /) -> Insertion: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["es_table_config *"], init: TableConfig, /) -> TableConfigs: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["int32_t[]"], init: Sequence[int], /) -> Numbers: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["int *", "int64_t *", "uint32_t *", "uint64_t *"], init: int = ..., /) -> Numbers: ...
    @overload
    @staticmethod
    def new(
        cdecl: Literal["uint8_t[]", "uint8_t[16]", "uint32_t[]", "uint64_t[]"],
        init: int | bytes | Sequence[int] = ...,
        /,
    ) -> Numbers: ...
    @overload
    @staticmethod
    def new(cdecl: Literal["void *[]"], init: Sequence[CData], /) -> CData: ...
    @staticmethod
    def typeof(cdecl: Literal["es_snapshot *"], /) -> CType[Snapshot]: ...
    @staticmethod
    def gc(value: _C, destructor: Callable[[_C], object], /) -> _C: ...
    @overload
    @staticmethod
    def from_buffer(value: Buffer | npt.NDArray[Any], /) -> CData: ...
    @overload
    @staticmethod
    def from_buffer(
        cdecl: Literal["uint8_t[]", "int64_t[]", "float[]", "double[]"], value: Buffer | npt.NDArray[Any], /
    ) -> CData: ...
    @overload
    @staticmethod
    def from_buffer(cdecl: Literal["es_snapshot *"], value: Buffer, /) -> Snapshot: ...
    @overload
    @staticmethod
    def from_buffer(cdecl: Literal["es_table_info *"], value: Buffer, /) -> CTableInfo: ...
    @overload
    @staticmethod
    def from_buffer(cdecl: Literal["es_save_state *"], value: Buffer, /) -> SaveState: ...
    @staticmethod
    def buffer(value: CData, size: int = ..., /) -> Bytes: ...
    @staticmethod
    def new_handle(value: object, /) -> CData: ...
    @staticmethod
    def from_handle(handle: CData, /) -> Any: ...
    @staticmethod
    def def_extern(
        name: str, error: int = ..., onerror: Callable[..., None] = ...
    ) -> Callable[[Callable[..., _R]], Callable[..., _R]]: ...
    @staticmethod
    def string(value: CData, /) -> bytes: ...
    @overload
    @staticmethod
    def cast(cdecl: Literal["uintptr_t"], value: CData, /) -> Address: ...
    @overload
    @staticmethod
    def cast(cdecl: Literal["es_save *"], value: int, /) -> Save: ...
    @overload
    @staticmethod
    def cast(cdecl: Literal["uint8_t *"], value: int, /) -> CData: ...
    @staticmethod
    def addressof(library: type[lib], name: str, /) -> CData: ...

class lib:
    ES_OK: Final[int]
    ES_FULL: Final[int]
    ES_EMPTY: Final[int]
    ES_TIMEOUT: Final[int]
    ES_ENDED: Final[int]
    ES_UNSURE: Final[int]
    ES_ECLOSED: Final[int]
    ES_EDETACHED: Final[int]
    ES_EFORK: Final[int]
    ES_EEVICTED: Final[int]
    ES_ESTALE: Final[int]
    ES_ENOOWNER: Final[int]
    ES_EREADONLY: Final[int]
    ES_EMAGIC: Final[int]
    ES_EINIT: Final[int]
    ES_EVERSION: Final[int]
    ES_ESIZE: Final[int]
    ES_EGEOMETRY: Final[int]
    ES_EOFFSET: Final[int]
    ES_EHASH: Final[int]
    ES_ESCRIBBLED: Final[int]
    ES_LAPPED: Final[int]
    ES_NOTHING: Final[int]
    ES_ROLE_LEARNER: Final[int]
    ES_ROLE_PRODUCER: Final[int]
    ES_NOBODY: Final[int]
    ES_FLAG_READY_ORDER: Final[int]
    ES_FLAG_DETAILED: Final[int]
    ES_FLAG_WEIGHTS: Final[int]
    ES_TAKE_ANY_ORDER: Final[int]
    ES_TAKE_SHORT: Final[int]
    ES_TAKE_LAST: Final[int]
    ES_WATCH_BATCH: Final[int]
    ES_WATCH_ROOM: Final[int]
    ES_WATCH_MOST: Final[int]
    ES_REMOTE_FREE: Final[int]
    ES_REMOTE_TAKEN: Final[int]
    ES_REMOTE_HERE: Final[int]
    ES_REMOTE_AWAY: Final[int]
    ES_PEER_SIZE: Final[int]
    ES_EXPIRED: Final[int]
    ES_REFUSED: Final[int]
    ES_NO_ROOM: Final[int]
    ES_SHORT: Final[int]
    ES_EPRIORITY: Final[int]
    ES_UNSYNCED: Final[int]
    ES_ENOITEM: Final[int]
    ES_EDAMAGED: Final[int]
    ES_ESELECTOR: Final[int]
    ES_EREENTERED: Final[int]
    ES_ENOSELECTOR: Final[int]
    ES_ETWICE: Final[int]
    ES_EENVIRONMENT: Final[int]
    ES_ERESET: Final[int]
    ES_UNIFORM: Final[int]
    ES_PRIORITIZED: Final[int]
    ES_SOFTMAX: Final[int]
    ES_FIFO: Final[int]
    ES_LIFO: Final[int]
    ES_MIN_HEAP: Final[int]
    ES_MAX_HEAP: Final[int]
    ES_CUSTOM: Final[int]
    ES_HOT_COLD: Final[int]
    ES_STEP_TERMINATED: Final[int]
    ES_STEP_TRUNCATED: Final[int]
    ES_STEP_LOST: Final[int]
    ES_BATCH_COLUMNS: Final[int]
    ES_STEP_FINAL: Final[int]
    ES_STEP_ENDS_TERMINATED: Final[int]
    ES_STEP_ENDS_TRUNCATED: Final[int]
    ES_HEAD_ITEM: Final[int]
    ES_ITEM_STEP: Final[int]
    ES_ITEM_N_STEP: Final[int]
    ES_ITEM_SEQUENCE: Final[int]
    ES_ITEM_EXPLICIT: Final[int]
    ES_OUTPUT_STEPS: Final[int]
    ES_OUTPUT_NEXT: Final[int]
    ES_OUTPUT_RETURN: Final[int]
    ES_OUTPUT_DISCOUNT: Final[int]
    ES_OUTPUT_MASK: Final[int]
    ES_OUTPUT_LENGTH: Final[int]
    ES_OUTPUT_COLUMN: Final[int]
    ES_MAX_TABLES: Final[int]
    ES_TABLE_NAME: Final[int]
    ES_UPDATE_KEYS: Final[int]
    ES_UPDATE_PRIORITIES: Final[int]
    ES_UPDATE_DELETE: Final[int]
    ES_UPDATE_ASK: Final[int]
    ES_UPDATE_LEARNED: Final[int]
    ES_MAX_OUTBOXES: Final[int]
    ES_MAX_ENVIRONMENTS: Final[int]

    @staticmethod
    def es_api_wait_kind() -> CData: ...
    @staticmethod
    def es_api_fork_generation() -> int: ...
    @staticmethod
    def es_segment_size(geo: Geometry, leaf_sizes: Numbers, /) -> int: ...
    @staticmethod
    def es_segment_format(
        base: CData,
        size: int,
        geo: Geometry,
        leaf_sizes: Numbers,
        schema: CData,
        uuid: CData,
        pid: int,
        created_ns: int,
        /,
    ) -> int: ...
    @staticmethod
    def es_segment_check(base: CData, size: int, /) -> int: ...
    @staticmethod
    def es_segment_describe(
        base: CData,
        size: int,
        geo: Geometry,
        uuid: CData,
        pid: Numbers,
        created_ns: Numbers,
        schema: CData,
        room: int,
        /,
    ) -> None: ...
    @staticmethod
    def es_segment_creator_byte() -> int: ...
    @staticmethod
    def es_segment_locks_new(fd: int, count: int, /) -> Locks: ...
    @staticmethod
    def es_segment_locks_free(locks: Locks, /) -> None: ...
    @staticmethod
    def es_segment_locks_try(locks: Locks, index: int, /) -> int: ...
    @staticmethod
    def es_segment_locks_drop(locks: Locks, index: int, /) -> None: ...
    @staticmethod
    def es_segment_locks_held(locks: Locks, index: int, /) -> int: ...
    @staticmethod
    def es_segment_locks_any(locks: Locks, /) -> int: ...
    @staticmethod
    def es_api_open(base: CData, size: int, locks: CData, poison: int, error: Numbers, /) -> Ring: ...
    @staticmethod
    def es_api_free(r: Ring, /) -> None: ...
    @staticmethod
    def es_api_attach(r: Ring, id: Identity, /) -> int: ...
    @staticmethod
    def es_api_detach(r: Ring, /) -> int: ...
    @staticmethod
    def es_api_stop(r: Ring, /) -> int: ...
    @staticmethod
    def es_api_retire(r: Ring, /) -> int: ...
    @staticmethod
    def es_api_shape(r: Ring, batch_size: Numbers, num_batches: Numbers, num_leaves: Numbers, /) -> None: ...
    @staticmethod
    def es_api_leaf_offset(r: Ring, leaf: int, /) -> int: ...
    @staticmethod
    def es_api_leaf_size(r: Ring, leaf: int, /) -> int: ...
    @staticmethod
    def es_api_send(r: Ring, leaves: Pointers, /) -> int: ...
    @staticmethod
    def es_api_send_wait(r: Ring, leaves: Pointers, timeout_ns: int, /) -> int: ...
    @staticmethod
    def es_api_send_many(r: Ring, leaves: Pointers, first: int, n: int, timeout_ns: int, /) -> int: ...
    @staticmethod
    def es_api_reserve(r: Ring, timeout_ns: int, position: Numbers, /) -> int: ...
    @staticmethod
    def es_api_reserve_many(r: Ring, want: int, position: Numbers, /) -> int: ...
    @staticmethod
    def es_api_commit_many(r: Ring, position: int, n: int, /) -> int: ...
    @staticmethod
    def es_api_commit(r: Ring, position: int, /) -> int: ...
    @staticmethod
    def es_api_abort(r: Ring, position: int, /) -> int: ...
    @staticmethod
    def es_api_learner_alive(r: Ring, /) -> int: ...
    @staticmethod
    def es_age_set_version(r: Ring, version: int, by_hand: int, /) -> int: ...
    @staticmethod
    def es_age_version(r: Ring, /) -> int: ...
    @staticmethod
    def es_age_set_latest(r: Ring, version: int, /) -> int: ...
    @staticmethod
    def es_age_offset(r: Ring, /) -> int: ...
    @staticmethod
    def es_age_measure(versions: CData, n: int, snap: Snapshot, /) -> None: ...
    @staticmethod
    def es_age_count_too_old(r: Ring, n: int, /) -> int: ...
    @staticmethod
    def es_bridge_begin(r: Ring, /) -> int: ...
    @staticmethod
    def es_bridge_learn(r: Ring, /) -> int: ...
    @staticmethod
    def es_bridge_open(r: Ring, id: CData | bytes, number: int, peer: bytes, /) -> int: ...
    @staticmethod
    def es_bridge_find(r: Ring, id: CData | bytes, peer: bytes, /) -> int: ...
    @staticmethod
    def es_bridge_known(r: Ring, remote: int, /) -> int: ...
    @staticmethod
    def es_bridge_wanted(r: Ring, remote: int, /) -> int: ...
    @staticmethod
    def es_bridge_leave(r: Ring, remote: int, keep: int, /) -> int: ...
    @staticmethod
    def es_bridge_committed(r: Ring, remote: int, /) -> int: ...
    @staticmethod
    def es_bridge_send(
        r: Ring, remote: int, data: CData, first: int, n: int, rows: int, version: int, timeout_ns: int, /
    ) -> int: ...
    @staticmethod
    def es_bridge_count(r: Ring, remote: int, bytes: int, frames: int, /) -> int: ...
    @staticmethod
    def es_bridge_count_refused(r: Ring, /) -> int: ...
    @staticmethod
    def es_monitor_next_remote(r: Ring, start: int, info: RemoteInfo, /) -> int: ...
    @staticmethod
    def es_api_take(r: Ring, flags: int, timeout_ns: int, snap: Snapshot, /) -> int: ...
    @staticmethod
    def es_api_release(r: Ring, batch: int, round: int, /) -> int: ...
    @staticmethod
    def es_api_give_back(r: Ring, batch: int, round: int, /) -> int: ...
    @staticmethod
    def es_api_committed_mask(r: Ring, batch: int, round: int, mask: CData, /) -> int: ...
    @staticmethod
    def es_api_committed_from(r: Ring, position: int, /) -> int: ...
    @staticmethod
    def es_api_claimed(r: Ring, /) -> int: ...
    @staticmethod
    def es_api_close(r: Ring, /) -> int: ...
    @staticmethod
    def es_api_reset_histograms(r: Ring, /) -> int: ...
    @staticmethod
    def es_api_wait_any(watches: Watch, n: int, word: Numbers, seen: int, timeout_ns: int, /) -> int: ...
    @staticmethod
    def es_api_change_word(word: Numbers, /) -> None: ...
    @staticmethod
    def es_weights_publish(r: Ring, leaves: CData, /) -> int: ...
    @staticmethod
    def es_weights_publish_as(r: Ring, number: int, leaves: CData, /) -> int: ...
    @staticmethod
    def es_weights_latest(r: Ring, /) -> int: ...
    @staticmethod
    def es_weights_copy(r: Ring, leaves: CData, /) -> int: ...
    @staticmethod
    def es_weights_lease(r: Ring, number: Numbers, slot: Numbers, /) -> int: ...
    @staticmethod
    def es_weights_release(r: Ring, lease: int, /) -> int: ...
    @staticmethod
    def es_weights_wait(r: Ring, number: int, timeout_ns: int, /) -> int: ...
    @staticmethod
    def es_weights_holder(r: Ring, lease: int, /) -> int: ...
    @staticmethod
    def es_weights_word(r: Ring, /) -> int: ...
    @staticmethod
    def es_sweep_next_dead(r: Ring, start: int, id: Identity, /) -> int: ...
    @staticmethod
    def es_sweep_settle(r: Ring, dead: Identity, reap: int, /) -> int: ...
    @staticmethod
    def es_monitor_next_owner(r: Ring, start: int, info: OwnerInfo, /) -> int: ...
    @staticmethod
    def es_monitor_next_claim(r: Ring, start: int, word: Numbers, /) -> int: ...
    @staticmethod
    def es_monitor_claim_owner(word: int, /) -> int: ...
    @staticmethod
    def es_monitor_count_held(r: Ring, held: Numbers, count: int, /) -> None: ...
    @staticmethod
    def es_monitor_lease_ages(r: Ring, ages_ns: Numbers, count: int, /) -> None: ...
    @staticmethod
    def es_monitor_count_committed(r: Ring, full: Numbers, /) -> int: ...
    @staticmethod
    def es_monitor_committed_before(r: Ring, position: int, /) -> int: ...
    @staticmethod
    def es_monitor_owner_entries(r: Ring, /) -> int: ...
    @staticmethod
    def es_monitor_places(r: Ring, at: Places, /) -> None: ...
    @staticmethod
    def es_monitor_observe(r: Ring, snap: Snapshot, /) -> None: ...
    @staticmethod
    def es_sweep_set_stalled(r: Ring, n: int, /) -> None: ...
    @staticmethod
    def es_replay_store_size(geo: StoreGeometry, parts: StoreParts, /) -> int: ...
    @staticmethod
    def es_replay_records_size(geo: StoreGeometry, parts: StoreParts, /) -> int: ...
    @staticmethod
    def es_replay_format(
        base: CData,
        size: int,
        geo: StoreGeometry,
        parts: StoreParts,
        uuid: CData,
        pid: int,
        created_ns: int,
        /,
    ) -> int: ...
    @staticmethod
    def es_replay_check(base: CData, size: int, /) -> int: ...
    @staticmethod
    def es_replay_describe(
        base: CData,
        size: int,
        geo: StoreGeometry,
        uuid: CData,
        pid: Numbers,
        created_ns: Numbers,
        schema: CData,
        room: int,
        tables: CData,
        max_tables: int,
        /,
    ) -> None: ...
    @staticmethod
    def es_replay_peek(base: CData, size: int, table: int, priorities: CData, room: int, seen: Peeked, /) -> int: ...
    @staticmethod
    def es_replay_open(
        base: CData,
        size: int,
        stream: int,
        custom: CustomCalls,
        num_custom: int,
        error: Numbers,
        why: Trouble,
        /,
    ) -> ReplayHold: ...
    @staticmethod
    def es_replay_free(r: ReplayHold, /) -> None: ...
    @staticmethod
    def es_replay_shape(r: ReplayHold, num_tables: Numbers, num_leaves: Numbers, /) -> None: ...
    @staticmethod
    def es_replay_leaf_size(r: ReplayHold, leaf: int, /) -> int: ...
    @staticmethod
    def es_replay_num_outputs(r: ReplayHold, table: int, /) -> int: ...
    @staticmethod
    def es_replay_output_size(r: ReplayHold, table: int, output: int, /) -> int: ...
    @staticmethod
    def es_replay_add(r: ReplayHold, leaves: Pointers, flags: int, priorities: CData, why: Trouble, /) -> int: ...
    @staticmethod
    def es_replay_extend(
        r: ReplayHold, leaves: Pointers, n: int, flags: CData, priorities: CData, error: Numbers, why: Trouble, /
    ) -> int: ...
    @staticmethod
    def es_replay_add_last(
        r: ReplayHold, leaves: Pointers, final: Pointers, flags: int, priorities: CData, why: Trouble, /
    ) -> int: ...
    @staticmethod
    def es_replay_add_vector(r: ReplayHold, v: Vector, first: int, error: Numbers, why: Trouble, /) -> int: ...
    @staticmethod
    def es_replay_end_episode(r: ReplayHold, /) -> None: ...
    @staticmethod
    def es_replay_end_episodes(r: ReplayHold, environments: CData, n: int, /) -> None: ...
    @staticmethod
    def es_replay_environments(r: ReplayHold, to: CEnvironment, room: int, /) -> int: ...
    @staticmethod
    def es_replay_set_version(r: ReplayHold, version: int, by_hand: int, /) -> None: ...
    @staticmethod
    def es_replay_version(r: ReplayHold, /) -> int: ...
    @staticmethod
    def es_replay_sample(r: ReplayHold, table: int, n: int, beta: float, out: BatchArrays, /) -> int: ...
    @staticmethod
    def es_replay_weigh(r: ReplayHold, table: int, weight: CData, n: int, beta: float, /) -> None: ...
    @staticmethod
    def es_replay_put_back(r: ReplayHold, table: int, n: int, items: BatchArrays, /) -> int: ...
    @staticmethod
    def es_replay_get(
        r: ReplayHold, table: int, keys: CData, n: int, beta: float, out: BatchArrays, why: Trouble, /
    ) -> int: ...
    @staticmethod
    def es_replay_update(r: ReplayHold, table: int, keys: CData, priorities: CData, n: int, why: Trouble, /) -> int: ...
    @staticmethod
    def es_replay_delete(r: ReplayHold, table: int, keys: CData, n: int, /) -> int: ...
    @staticmethod
    def es_replay_reset(r: ReplayHold, table: int, /) -> int: ...
    @staticmethod
    def es_replay_set_limits(r: ReplayHold, table: int, min_diff: float, max_diff: float, /) -> int: ...
    @staticmethod
    def es_replay_learned(r: ReplayHold, table: int, /) -> int: ...
    @staticmethod
    def es_replay_notes(r: ReplayHold, bytes: CData, size: int, /) -> None: ...
    @staticmethod
    def es_replay_set_notes(r: ReplayHold, bytes: CData, size: int, /) -> None: ...
    @staticmethod
    def es_replay_can_sample(r: ReplayHold, table: int, n: int, /) -> int: ...
    @staticmethod
    def es_replay_can_insert(r: ReplayHold, table: int, n: int, /) -> int: ...
    @staticmethod
    def es_replay_check_priority(r: ReplayHold, table: int, priority: float, /) -> int: ...
    @staticmethod
    def es_replay_list_steps(r: ReplayHold, steps: StoredStep, room: int, /) -> int: ...
    @staticmethod
    def es_replay_read_steps(r: ReplayHold, steps: StoredStep, n: int, leaves: CData, /) -> int: ...
    @staticmethod
    def es_replay_info(r: ReplayHold, table: int, info: CTableInfo, /) -> None: ...
    @staticmethod
    def es_replay_num_steps(r: ReplayHold, /) -> int: ...
    @staticmethod
    def es_replay_connect_inbox(r: ReplayHold, ring: Ring, segment: CData, uuid: CData | bytes, /) -> int: ...
    @staticmethod
    def es_replay_connect_updates(r: ReplayHold, ring: Ring, segment: CData, uuid: CData | bytes, /) -> int: ...
    @staticmethod
    def es_replay_connect_batches(
        r: ReplayHold, table: int, ring: Ring, segment: CData, uuid: CData | bytes, rank: int, world_size: int, /
    ) -> int: ...
    @staticmethod
    def es_replay_put(r: ReplayHold, number: int, n: int, leaves: CData, /) -> int: ...
    @staticmethod
    def es_replay_disconnect(r: ReplayHold, /) -> None: ...
    @staticmethod
    def es_replay_snapshot(r: ReplayHold, to: CData, /) -> int: ...
    @staticmethod
    def es_replay_snapshot_done(r: ReplayHold, /) -> None: ...
    @staticmethod
    def es_replay_hold(r: ReplayHold, snapshot: CData, /) -> None: ...
    @staticmethod
    def es_replay_room(r: ReplayHold, /) -> int: ...
    @staticmethod
    def es_replay_arrivals(r: ReplayHold, /) -> int: ...
    @staticmethod
    def es_replay_turn(r: ReplayHold, most: int, turn: Turn, /) -> int: ...
    @staticmethod
    def es_checkpoint_begin(r: ReplayHold, config: SaveConfig, state: SaveState, error: Numbers, /) -> Save: ...
    @staticmethod
    def es_checkpoint_take(r: ReplayHold, save: Save, /) -> int: ...
    @staticmethod
    def es_checkpoint_write(save: Save, /) -> int: ...
    @staticmethod
    def es_checkpoint_end(r: ReplayHold, save: Save, /) -> int: ...
    @staticmethod
    def es_checkpoint_num_chunks(save: Save, /) -> int: ...
    @staticmethod
    def es_checkpoint_chunk(save: Save, i: int, /) -> int: ...
    @staticmethod
    def es_checkpoint_finish(save: Save, i: int, header: ChunkHeader, /) -> int: ...
    @staticmethod
    def es_checkpoint_free(save: Save, /) -> None: ...
    @staticmethod
    def es_checkpoint_check(records: CData, size: int, /) -> int: ...
    @staticmethod
    def es_checkpoint_records(
        base: CData,
        size: int,
        records: CData,
        records_size: int,
        tables: Numbers,
        restored: CRestored,
        why: Trouble,
        /,
    ) -> int: ...
    @staticmethod
    def es_checkpoint_rows(
        base: CData, size: int, directory: int, rows: int, next: Numbers, most: int, why: Trouble, /
    ) -> int: ...
    @staticmethod
    def es_checkpoint_drawn(r: ReplayHold, from_: CData, size: int, /) -> int: ...
    @staticmethod
    def es_checkpoint_go_on(r: ReplayHold, stream: int, environments: CEnvironment, n: int, /) -> int: ...
    @staticmethod
    def es_plan_best() -> int: ...
    @staticmethod
    def es_plan_distances_f32(
        kind: int, plans: CData, others: CData, stride: int, n: int, dim: int, distances: CData, /
    ) -> None: ...
    @staticmethod
    def es_plan_distances_f64(
        kind: int, plans: CData, others: CData, stride: int, n: int, dim: int, distances: CData, /
    ) -> None: ...
    @staticmethod
    def es_plan_take_f32(
        kind: int, mean: CData, plans: CData, n: int, dim: int, decay: float, distances: CData, /
    ) -> None: ...
    @staticmethod
    def es_plan_take_f64(
        kind: int, mean: CData, plans: CData, n: int, dim: int, decay: float, distances: CData, /
    ) -> None: ...
    @staticmethod
    def es_plan_surprise_f32(
        kind: int,
        plans: CData,
        ema: CData,
        n: int,
        dim: int,
        rewards: CData,
        stride: int,
        plan_weight: float,
        reward_weight: float,
        scores: CData,
        /,
    ) -> int: ...
    @staticmethod
    def es_plan_surprise_f64(
        kind: int,
        plans: CData,
        ema: CData,
        n: int,
        dim: int,
        rewards: CData,
        stride: int,
        plan_weight: float,
        reward_weight: float,
        scores: CData,
        /,
    ) -> int: ...
    @staticmethod
    def es_plan_scores(
        distances: CData, rewards: CData, stride: int, n: int, plan_weight: float, reward_weight: float, /
    ) -> int: ...
    @staticmethod
    def es_costs_effective(lengths: CData, reused: CData, n: int, scale: float, costs: CData, /) -> int: ...
    @staticmethod
    def es_costs_priorities(
        rewards: CData,
        costs: CData,
        queue_times: CData,
        n: int,
        bandwidth_weight: float,
        queue_weight: float,
        epsilon: float,
        priorities: CData,
        /,
    ) -> int: ...
    @staticmethod
    def es_costs_total(values: CData, n: int, least: float, absolute: int, total: CData, /) -> int: ...
    @staticmethod
    def es_costs_weights(
        probabilities: CData, shares: CData, n: int, size: float, beta: float, weights: CData, /
    ) -> int: ...
    @staticmethod
    def es_prefix_index_new(block_size: int, capacity: int, /) -> PrefixNodes: ...
    @staticmethod
    def es_prefix_index_free(x: PrefixNodes, /) -> None: ...
    @staticmethod
    def es_prefix_index_match(x: PrefixNodes, tokens: CData, blocks: int, numbers: CData, end: Numbers, /) -> int: ...
    @staticmethod
    def es_prefix_index_lease(x: PrefixNodes, end: int, /) -> None: ...
    @staticmethod
    def es_prefix_index_release(x: PrefixNodes, end: int, /) -> None: ...
    @staticmethod
    def es_prefix_index_insert(
        x: PrefixNodes, tokens: CData, blocks: int, numbers: CData, done: Insertion, evicted: CData, /
    ) -> int: ...
    @staticmethod
    def es_prefix_index_evict(x: PrefixNodes, blocks: int, numbers: CData, /) -> int: ...
    @staticmethod
    def es_prefix_index_blocks(x: PrefixNodes, /) -> int: ...
