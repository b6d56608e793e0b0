"""Mutants of the replay: of rows that stay for a snapshot or a checkpoint, and of what a restored store can be."""

from mutant import Mutant


def _mutant(file: str, name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, f"replay/{file}", function, bug, where, edits)


def _hold(name: str, function: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_hold.c", name, function, "held rows", bug, *edits)


def _snapshot(name: str, function: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_snapshot.c", name, function, "held rows", bug, *edits)


_BEFORE = "    if (m->save != NULL)\n        es_save_before(m->save, &m->store, step);\n"
_ROW = "    es_gather_into_step(&m->store, step, leaves, i);\n"
_BEGIN = "    es_hold_begin(&m->steps.hold, m->steps.living);\n"

HOLDING = (
    _hold(
        "held-leaves",
        "es_hold_leave",
        "the row of a step that goes is free although the last snapshot refers to it",
        ("!has(h->held, row) && ", ""),
    ),
    _hold(
        "next-leaves",
        "es_hold_leave",
        "the row of a step that goes is free although the snapshot that is being made refers to it",
        (" && !has(h->next, row)", ""),
    ),
    _hold(
        "held-not-taken",
        "es_hold_add",
        "a row that the last snapshot refers to is held, and is given to new steps all the same",
        ("        es_rank_add(h->taken, row);\n", "        (void)row;\n"),
    ),
    _hold(
        "drop-keeps-next",
        "es_hold_drop",
        "rows stay held for a snapshot that is of no use",
        ("    memset(h->next, 0, words(h) * sizeof *h->next);\n", ""),
    ),
    _snapshot(
        "done-at-once",
        "es_snapshot_take",
        "the rows of the last snapshot are free before the next one is on the disk",
        (_BEGIN, f"{_BEGIN}    es_hold_end(&m->steps.hold, m->steps.living);\n"),
    ),
    _snapshot(
        "hold-nothing",
        "es_snapshot_take",
        "the rows of a snapshot are not held",
        (_BEGIN, ""),
    ),
    _snapshot(
        "open-holds-nothing",
        "es_snapshot_hold",
        "whoever opens a store does not hold what its last snapshot refers to",
        ("            es_hold_add(hold, i);\n", "            (void)hold;\n"),
    ),
    _mutant(
        "es_insert.c",
        "row-before-save",
        "es_insert_step",
        "held rows",
        "a row is changed before a checkpoint has it",
        (_BEFORE + _ROW, _ROW + _BEFORE),
    ),
    _mutant(
        "es_restore.c",
        "filled-early",
        "es_restore_records",
        "contents",
        "a restored store can be opened before it has its rows",
        ("        es_store_fill(&v.new);\n", ""),
    ),
    _mutant(
        "es_chunk.c",
        "row-unchecked",
        "es_chunk_read_row",
        "contents",
        "the row of another checkpoint, or half of one, is restored",
        ("code == ES_OK && check != row_check(form, file->writer, arrival, row)", "code == ES_OK && false"),
    ),
    _mutant(
        "es_chunk.c",
        "chunk-not-flushed",
        "es_chunk_finish",
        "contents",
        "a checkpoint is complete before its rows are on the disk",
        (" || fsync(fd) != 0)", " || fd < 0)"),
    ),
    _mutant(
        "es_table.h",
        "key-any-generation",
        "es_table_find",
        "contents",
        "the key of an item that has gone finds the one that came to its place",
        ("es_table_key(t, item) == key", "(uint32_t)es_table_key(t, item) == (uint32_t)key"),
    ),
)
