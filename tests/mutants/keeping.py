"""Mutants of the replay: of what makes a change whole, and of what finishes it after a death."""

from mutant import Mutant


def _mutant(file: str, name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, f"replay/{file}", function, bug, where, edits)


def _redo(name: str, function: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_redo.c", name, function, "redo list", bug, *edits)


def _table(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_table.c", name, function, where, bug, *edits)


def _opening(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_table_recover.c", name, function, where, bug, *edits)


def _draw(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_draw.c", name, function, where, bug, *edits)


def _tables(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_recover.c", name, function, where, bug, *edits)


def _known(name: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_known.c", name, "es_known_adopt", "each once", bug, *edits)


def _insert(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_insert.c", name, function, where, bug, *edits)


def _source(name: str, function: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_source.c", name, function, "each once", bug, *edits)


_LENGTH = "    *(volatile uint64_t *)&redo->log->length = length;\n"
_CLEAR = "    *(volatile uint64_t *)&redo->log->length = 0;\n"
_MAGIC = "    *(volatile uint64_t *)&hdr->magic = MAGIC;\n"
_ROW = "    es_gather_into_step(&m->store, step, leaves, i);\n"
_COMMIT = "    es_redo_commit(&m->store.redo);\n"
_UNKNOWN = "    *(volatile uint64_t *)&ring->known = 0;\n"
_KNOWN = "    *(volatile uint64_t *)&ring->known = 1;\n"
_FORGET = "    memset(words, 0, n * sizeof *words);\n"
_COPY_UUID = "    memcpy(ring->uuid, uuid, sizeof ring->uuid);\n"
_ORIGIN = "        es_redo_set(&m->store.redo, origin->word, origin->value);\n"
_GIVE_BACK = "es_api_give_back(s->ring, s->taken[i].batch, s->taken[i].round);"
_TAKEN = "    s->num_taken = n < 0 ? 0 : (uint32_t)n;\n"


def _outbox(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_outbox.c", name, function, where, bug, *edits)


_GATHER_ONE = "    es_draw_write(t, item, into->leaves, at, into->streams);\n"
_WEIGH = """\
        if (i < allowed && i % WEIGHED == 0) /* while they come */
            weigh(t, items + i, up_to(allowed - i, WEIGHED), to->ratio + at + i, into->beta);
"""
_WEIGH_ALL = "    weigh(t, items, allowed, to->ratio + at, into->beta);\n"


def _at_once(word: str, value: str) -> str:
    return f"*(volatile uint64_t *)&{word} = {value};"


KEEPING = (
    _mutant(
        "es_redo.h",
        "redo-length-grows",
        "es_redo_set",
        "redo list",
        "the list's length is in the store while the list is written",
        (
            "    entry->value = value;\n",
            "    entry->value = value;\n    *(volatile uint64_t *)&redo->log->length = redo->length;\n",
        ),
    ),
    _redo(
        "redo-words-first",
        "es_redo_commit",
        "the words are changed before the list has its length",
        (_LENGTH, f"    apply(redo, length);\n    ES_COMPILER_BARRIER();\n{_LENGTH}"),
    ),
    _redo("redo-stays", "es_redo_commit", "the list keeps its length when its words are changed", (_CLEAR, "")),
    _redo(
        "redo-recover-half",
        "es_redo_recover",
        "recovery leaves the list's last word out",
        ("apply(redo, length)", "apply(redo, length / 2)"),
    ),
    _redo(
        "redo-recover-early",
        "es_redo_recover",
        "recovery takes the list's length away before it changes the words",
        ("    redo->length = 0;\n", f"    redo->length = 0;\n{_CLEAR}    ES_COMPILER_BARRIER();\n"),
    ),
    _redo(
        "redo-recover-any", "es_redo_recover", "recovery takes a list of any length", ("length > redo->room || ", "")
    ),
    _table(
        "evicted-apart",
        "es_table_remove",
        "one change",
        "the counter of evicted items changes apart from the item",
        (
            "es_redo_set(&t->store->redo, &t->words->evicted, t->words->evicted + 1);",
            _at_once("t->words->evicted", "t->words->evicted + 1"),
        ),
    ),
    _draw(
        "sampled-apart",
        "note_draws",
        "one change",
        "the counter of samples changes apart from the item",
        (
            "es_redo_set(redo, &t->words->sampled, t->words->sampled + n);",
            _at_once("t->words->sampled", "t->words->sampled + n"),
        ),
    ),
    _draw(
        "twice-in-a-list",
        "note_times",
        "one change",
        "an item that comes twice in a list counts once",
        ("times += items[j] == items[i];", "times += 0;"),
    ),
    _draw(
        "list-at-the-end",
        "draw_independent",
        "one change",
        "the generator's state after all draws is in the first list",
        ("es_random_after(before, done_at + some)", "after"),
    ),
    _draw(
        "random-apart",
        "note_draws",
        "one change",
        "the generator's state changes before the draw does",
        ("es_redo_set(redo, &t->words->random, random);", _at_once("t->words->random", "random")),
    ),
    _draw(
        "round-apart",
        "draw_one",
        "one change",
        "a new round begins before its first draw",
        (
            "        es_redo_set(redo, &t->words->round, round);\n    }\n    if (used_up)",
            f"        {_at_once('t->words->round', 'round')}\n    }}\n    if (used_up)",
        ),
    ),
    _table(
        "parkings-apart",
        "es_table_note_park",
        "one change",
        "the counter of parked items changes apart from the item",
        (
            "es_redo_set(&t->store->redo, &t->words->parkings, t->words->parkings + 1);",
            _at_once("t->words->parkings", "t->words->parkings + 1"),
        ),
    ),
    _insert(
        "step-apart",
        "note_step",
        "one change",
        "a step lives before its items do",
        (
            "es_redo_set(&m->store.redo, &record->word, es_record_word(generation, head->flags, ES_RECORD_LIVE));",
            _at_once("record->word", "es_record_word(generation, head->flags, ES_RECORD_LIVE)"),
        ),
    ),
    _insert(
        "row-late",
        "es_insert_step",
        "one change",
        "a step lives before its bytes are there",
        (_ROW, ""),
        (_COMMIT, _COMMIT + _ROW),
    ),
    _insert(
        "kept-stays",
        "es_insert_step",
        "what follows",
        "a stream's last step but one stays though nothing refers to it",
        ("    es_steps_trim(&m->steps, step);\n", ""),
    ),
    _tables(
        "open-no-settle",
        "open_tables",
        "recovery",
        "what a dead process was about to evict stays",
        ("        es_room_settle(m);\n", ""),
    ),
    _tables(
        "open-no-drop",
        "open_tables",
        "recovery",
        "a step that a dead process was about to drop stays",
        ("        es_steps_trim_all(&m->steps, order, n);\n", ""),
    ),
    _opening(
        "open-no-reset",
        "es_table_recover_finish",
        "recovery",
        "a reset that a dead process had begun is not finished",
        ("if (t->words->resetting)", "if (t->words->resetting > 1)"),
    ),
    _opening(
        "open-no-highest",
        "es_table_recover_finish",
        "recovery",
        "a priority that a dead process had set is above the highest that the store says",
        ("        es_table_update_highest(t, t->highest);\n", "        (void)t;\n"),
    ),
    _mutant(
        "es_table_update.c",
        "update-not-last",
        "raise_highest",
        "recovery",
        "the highest priority is one that an item had for a moment, until the same update gave it another",
        (" && t->items[item].priority == priorities[i]", ""),
    ),
    _mutant(
        "es_table_update.c",
        "update-group-twice",
        "es_table_update",
        "contents",
        "an item that is named twice among the changes of one list counts twice",
        ("noted == ES_STORE_UPDATES || seen & bit", "noted == ES_STORE_UPDATES"),
    ),
    _mutant(
        "es_table_update.c",
        "update-no-clock",
        "commit_priorities",
        "recovery",
        "the table's clock stands still: later changes seem to be older ones",
        ("&t->words->clock, time", "&t->words->clock, time - time % 2"),
    ),
    _tables(
        "open-no-unpark",
        "open_tables",
        "recovery",
        "items that may come in stay parked",
        ("        es_insert_unpark(m);\n", ""),
    ),
    _tables(
        "open-no-order",
        "open_tables",
        "recovery",
        "steps that are to make room are in another order once the store was opened again",
        ("        es_steps_sort(&m->steps, order, n);\n", "        m->steps.recovering = false;\n"),
    ),
    _mutant(
        "es_room.c",
        "room-any-items",
        "es_room_for",
        "room",
        "protected items outgrow their table's records",
        ("sum.fixed > m->store.max_items", "sum.fixed > UINT64_MAX - 1"),
        ("too_many = sum.all > m->store.max_items ? sum.all - m->store.max_items : 0", "too_many = 0"),
    ),
    _draw(
        "draw-divides",
        "draw_independent",
        "generator",
        "the state after each of several draws is wrong when the generator wraps",
        (
            "es_random_after(before, done_at + some)",
            "before + (done_at + some) * ((after - before) / allowed)",
        ),
    ),
    _opening(
        "open-any-step",
        "record_is_possible",
        "foreign store",
        "an item may refer to a step that does not live",
        ("           es_rank_has(t->steps->living, r->step) && ", "           "),
    ),
    _mutant(
        "es_steps.c",
        "kept-none",
        "leave",
        "what follows",
        "a stream that lost the step that it kept keeps none",
        ("= last_of(s, stream);", "= last_of(s, stream) * 0 + ES_STEPS_NONE;"),
    ),
    _mutant(
        "es_store.c",
        "store-magic-first",
        "es_store_format",
        "format",
        "a store has its magic number before it has its hash",
        ("hdr->hash = hash_of(", "uint64_t hash = hash_of("),
        (_MAGIC, f"{_MAGIC}    ES_COMPILER_BARRIER();\n    hdr->hash = hash;\n"),
    ),
    _insert(
        "origin-apart",
        "es_insert_step",
        "each once",
        "a step that a ring brought is there before the store says that it was used",
        (_ORIGIN, "        (void)origin;\n"),
        (_COMMIT, f"{_COMMIT}    if (origin != NULL)\n        {_at_once('*origin->word', 'origin->value')}\n"),
    ),
    _source(
        "source-twice",
        "has_next",
        "a sample that was used before its replay was killed is used again",
        (" && s->rounds[s->taken[s->num_used].batch] == s->taken[s->num_used].round + 1)", " && false)"),
    ),
    _source(
        "source-at-once",
        "take_more",
        "samples are released when they are taken",
        (_TAKEN, f"{_TAKEN}    es_group_release(s->ring, s->taken, s->num_taken);\n"),
    ),
    _source(
        "source-half-group",
        "es_source_release",
        "one of a full group is not released",
        ("s->taken, s->num_used);", "s->taken, s->num_used - (s->num_used == ES_GROUP_MOST));"),
    ),
    _known(
        "adopt-known",
        "the store says that it knows a ring while the words are still another ring's",
        (_COPY_UUID, ""),
        (_UNKNOWN, f"{_COPY_UUID}    ES_COMPILER_BARRIER();\n"),
    ),
    _known(
        "adopt-early",
        "the store says that it knows a ring before the ring's uuid is there and another ring forgotten",
        (_FORGET, f"{_COPY_UUID}{_KNOWN}    ES_COMPILER_BARRIER();\n{_FORGET}"),
    ),
    _known(
        "adopt-again",
        "what is known of a ring is forgotten when the next replay connects to it",
        ("if (es_known_is(ring, uuid))", "if (es_known_is(ring, uuid) && ring->known > 1)"),
    ),
    _source(
        "close-releases",
        "es_source_close",
        "a sample that was taken and not used is released",
        (_GIVE_BACK, "es_api_release(s->ring, s->taken[i].batch, s->taken[i].round);"),
    ),
    _source(
        "close-keeps",
        "es_source_close",
        "a sample that was taken and not used is not given back",
        (_GIVE_BACK, "(void)s;"),
    ),
    _mutant(
        "es_inbox.c",
        "update-passed-early",
        "es_inbox_update",
        "each once",
        "the store says that updates were made before they are",
        ("        if (!block_is_possible", "        pass_over(&in->updates);\n        if (!block_is_possible"),
        ("        pass_over(&in->updates);\n        made++;", "        made++;"),
    ),
    _draw(
        "place-apart",
        "note_draws",
        "each once",
        "the place that a draw goes to is noted before the draw",
        ("es_redo_set(redo, into->word, into->value + done + n);", _at_once("into->word[0]", "into->value + done + n")),
    ),
    _draw(
        "place-late",
        "note_draws",
        "each once",
        "the place that a draw goes to is not noted with it",
        ("es_redo_set(redo, into->word, into->value + done + n);", "(void)done;"),
    ),
    _draw(
        "gather-late",
        "draw_one",
        "each once",
        "a draw is noted before its row is in the ring",
        (_GATHER_ONE, ""),
        (
            "    es_redo_commit(redo);\n    if (t->aside",
            f"    es_redo_commit(redo);\n{_GATHER_ONE}    if (t->aside",
        ),
    ),
    _draw(
        "weigh-late",
        "draw_independent",
        "each once",
        "a draw is noted before its weight is in the ring",
        (_WEIGH, ""),
        ("    return (int64_t)allowed;\n", f"{_WEIGH_ALL}    return (int64_t)allowed;\n"),
    ),
    _outbox(
        "drawn-again",
        "deliver_drawn",
        "each once",
        "what a dead replay has drawn is drawn for anew",
        ("uint64_t drawn = *(volatile uint64_t *)&o->words->drawn;", "uint64_t drawn = 0;"),
    ),
    _outbox(
        "drawn-one-more",
        "deliver_drawn",
        "each once",
        "a place is delivered for which nothing was drawn",
        ("(uint64_t)first >= drawn", "(uint64_t)first > drawn"),
    ),
    _outbox(
        "box-early",
        "fill_some",
        "each once",
        "places are committed before what is drawn for them is noted",
        (
            "    es_drawing columns = columns_of(o);\n",
            "    es_drawing columns = columns_of(o);\n    es_api_commit_many(o->ring, first, (uint64_t)claimed);\n",
        ),
    ),
    _outbox(
        "box-any-claim",
        "es_outbox_open",
        "each once",
        "a ring is joined although a dead replay's claims are still there",
        ("es_monitor_next_claim(ring, 0, &claim) >= 0", "es_monitor_next_claim(ring, 0, &claim) >= INT64_MAX"),
    ),
    _outbox(
        "turn-too-long",
        "es_outbox_fill_group",
        "each once",
        "a rank gets more than its batch in its turn",
        ("left < most - filled ? left : most - filled", "left > most - filled ? left : most - filled"),
    ),
    _outbox(
        "turn-of-the-last",
        "whose_turn",
        "each once",
        "of the ranks with equally many batches the last one comes first",
        ("o->words->drawn / o->batch_size < best", "o->words->drawn / o->batch_size <= best"),
    ),
    _outbox(
        "box-foreign",
        "es_outbox_open",
        "each once",
        "a ring is joined that another replay has filled",
        (
            "!es_known_is(&o->words->ring, id) && es_api_claimed(ring) > 0",
            "!es_known_is(&o->words->ring, id) && es_api_claimed(ring) > INT64_MAX - 1",
        ),
    ),
)
