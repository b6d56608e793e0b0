"""What the figures of a replay's tables are called where they are exported, after ``echo_shm_replay_``."""

#: Of a table: name, kind, help, and the field of TableInfo.
OF_TABLES = (
    ("items", "gauge", "Items of the table.", "size"),
    ("items_max", "gauge", "The most items of the table.", "max_size"),
    ("inserted", "counter", "Items that came.", "inserted"),
    ("sampled", "counter", "Draws.", "sampled"),
    ("deleted", "counter", "Items that went.", "deleted"),
    ("evicted", "counter", "Items that went to make room.", "evicted"),
    ("parked_items", "gauge", "Items that wait for the limiter to let them in.", "parked"),
    ("episodes", "gauge", "Different episodes among the items.", "episodes"),
    ("effective_sample_size", "gauge", "How many equally likely items would vary a draw as much.",
     "effective_sample_size"),
    ("table_bytes", "gauge", "Memory of the table, beside the steps.", "bytes"),
)  # fmt: skip

#: Of a table's limiter, all gauges: name and help. The field of LimiterInfo is the name without ``limiter_``.
OF_LIMITERS = (
    ("limiter_diff", "inserted * ratio - sampled."),
    ("limiter_min_diff", "What the limiter keeps diff above."),
    ("limiter_max_diff", "What the limiter keeps diff below."),
    ("limiter_can_insert", "1 if an item can be inserted."),
    ("limiter_can_sample", "1 if an item can be sampled."),
)
