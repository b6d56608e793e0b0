"""Mutants of the replay: of items of several steps, of what completes them, and of what they hold."""

from mutant import Mutant


def _mutant(file: str, name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, f"replay/{file}", function, bug, where, edits)


def _window(name: str, function: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_window.c", name, function, "windows", bug, *edits)


def _insert(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_insert.c", name, function, where, bug, *edits)


def _steps(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_steps.c", name, function, where, bug, *edits)


def _implicit(name: str, function: str, where: str, bug: str, *edits: tuple[str, str]) -> Mutant:
    return _mutant("es_implicit.c", name, function, where, bug, *edits)


COMPLETING = (
    _window(
        "window-left-none",
        "es_window_arrival",
        "an episode that another one follows completes nothing",
        ("== ES_EVENT_GOES_ON", "== ES_EVENT_NONE"),
    ),
    _window(
        "window-late",
        "es_window_arrival",
        "a late step completes windows",
        ("is_late || ", "(is_late && step == 0) || "),
    ),
    _window(
        "window-number-wraps",
        "es_window_arrival",
        "number 0 follows the greatest one",
        ("head->number == 0 || ", ""),
    ),
    _window(
        "window-index-ignored",
        "es_window_arrival",
        "each step is the first one of its episode",
        ("a.own.index = head->index;", "a.own.index = 0;"),
    ),
    _window(
        "window-stack-across",
        "transitions",
        "a stack takes the first frame that is there for the episode's first one",
        ("e->run - item->before : 0", "e->run : 0"),
    ),
    _window(
        "window-before-none",
        "transition",
        "the frames before a transition are not counted to it",
        ("w.before = e->run - w.length < item->before ? e->run - w.length : item->before;", "w.before = 0;"),
    ),
    _window(
        "window-end-short",
        "transitions",
        "a termination leaves out the transition of its own step",
        ("*end = (lengths){n, 1};", "*end = (lengths){n, 2};"),
    ),
    _window(
        "window-final-in",
        "sequences",
        "what an episode ends with is part of its last sequence",
        ("        so_far--, run--;\n", "        so_far += 0;\n"),
    ),
    _window(
        "window-rest-across",
        "sequences",
        "the rest of an episode reaches across a gap",
        (" && run >= so_far - start)", ")"),
    ),
    _steps(
        "run-across",
        "run_up_to",
        "windows",
        "the steps of two episodes that follow each other are one run",
        ("s->episode_of[older] != s->episode_of[step]", "false"),
    ),
    _mutant(
        "es_store_layout.c",
        "keep-one-less",
        "es_store_layout_steps_kept",
        "windows",
        "streams keep one step too few for an episode that is left",
        ("es_store_layout_span(&tables[t].item) + UINT64_C(1)", "es_store_layout_span(&tables[t].item) + UINT64_C(0)"),
    ),
    _insert(
        "making-count-apart",
        "make_items",
        "one change",
        "the count of a step's items that are made changes apart from the item",
        ("es_redo_set(redo, &making->made, made);", "*(volatile uint64_t *)&making->made = made;"),
    ),
    _insert(
        "making-apart",
        "note_making",
        "one change",
        "a step lives, and the store does not say yet that its items are to be made",
        ("    es_redo_set(&m->store.redo, &making->step, (uint64_t)step + 1);\n", "    (void)step;\n"),
    ),
    _insert(
        "making-ends-early",
        "make_items",
        "one change",
        "the store says that all items are made when the last one is not",
        ("if (made == all)", "if (made + 1 >= all)"),
    ),
    _insert(
        "making-priorities-lost",
        "note_making",
        "recovery",
        "items that are made after a death have other priorities",
        ("    memcpy(making->priorities, c->priorities,", "    memset(making->priorities, 0 * (c == NULL),"),
    ),
    _insert(
        "making-no-settle",
        "make_items",
        "room",
        "items are made, and nothing goes until the last one is",
        ("            es_room_settle_items(m);", "            (void)m;"),
    ),
    _insert(
        "step-twice",
        "comes_again",
        "windows",
        "a step comes between two of an item, with the number of one of them",
        ("m->store.keep > 1 &&", "m->store.keep > UINT32_MAX - 1 &&"),
    ),
    _insert(
        "end-no-room",
        "es_insert_can_end",
        "room",
        "an episode's last step is stored, and there is no room for what it ends with",
        (".steps = 2}", ".steps = 1}"),
    ),
    _steps(
        "uses-stay",
        "es_steps_unlink",
        "what follows",
        "an item that goes still refers to its steps",
        ("        es_steps_stop_using(s, used);\n", "        (void)used;\n"),
    ),
    _steps(
        "unused-stay",
        "es_steps_drop_unused",
        "what follows",
        "the first steps of an item that goes stay though nothing refers to them",
        ("i < (span == 0 ? 1 : span)", "i < 1 + 0 * span"),
    ),
    _steps(
        "kept-stale",
        "unchain",
        "what follows",
        "a stream whose last step has gone does not keep those before it",
        ("        keep_older(s, x);\n", "        (void)keep_older, x->kept = x->last;\n"),
    ),
    _steps(
        "items-by-time",
        "es_steps_link",
        "recovery",
        "which item of a step goes first depends on which was made first",
        ("while (*link > item + 1)", "while (*link > item + 1 && false)"),
    ),
    _implicit(
        "mark-at-once",
        "es_implicit_note",
        "one change",
        "a window is marked before its table counts it",
        ("es_redo_set(&x->store->redo, &x->marks[step / WORD], ", "*(volatile uint64_t *)&x->marks[step / WORD] = ("),
    ),
    _implicit(
        "window-twice",
        "es_implicit_can_have",
        "windows",
        "a window that is there is made again",
        ("!es_rank_has(x->members, step) && ", ""),
    ),
    _implicit(
        "windows-let-go",
        "change_uses",
        "what follows",
        "a window that goes takes steps that the next one refers to",
        ("if (n >= shared && !use)", "if (!use)"),
    ),
    _implicit(
        "windows-late",
        "es_implicit_arrived",
        "what follows",
        "a step that comes between others is not kept for the windows behind it",
        ("next < x->length && step", "next < 0 && step"),
    ),
    _implicit(
        "oldest-newest",
        "insert",
        "recovery",
        "which window is the oldest depends on which came first",
        ("arrival_of(x, c->item) < arrival_of(x, x->oldest)", "arrival_of(x, c->item) == arrival_of(x, x->oldest)"),
    ),
    _mutant(
        "es_outputs.c",
        "discount-lives",
        "discount_of",
        "contents",
        "what follows a termination counts",
        ("f->found[place].flags & ES_WINDOW_TERMINATED ? f->span + 1 : f->acts[place]", "f->acts[place]"),
    ),
    _mutant(
        "es_table.c",
        "always-in-a-row",
        "note_in_a_row",
        "contents",
        "an item takes the steps of whoever wrote between its own",
        ("n <= 1 ? *word | bit : *word & ~bit", "n > 0 ? *word | bit : *word & ~bit"),
    ),
)
