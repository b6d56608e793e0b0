# Lists the core's instructions and their source: address, "exchange" or "-", function, file, line.
#   awk -f core_table.awk addresses=1 listing             prints the addresses only, one per line
#   awk -f core_table.awk listing places=1 origins        prints the table
# listing: the output of objdump -d -j es_core. origins: the output of addr2line -a -f -i for these addresses.
# An inlined instruction belongs to the innermost function from a .c file of the core.

function flush() {
    if (address != "" && file != "")
        print address, (address in exchange ? "exchange" : "-"), name, file, line
    address = file = ""
}

# The listing:   401234:	lock cmpxchg %rcx,(%rdx)
!places {
    if ($0 !~ /^ *[0-9a-f]+:\t/ || $0 ~ /\tnop|\t(cs |data16 )+|xchg +%ax,%ax/)
        next
    at = $1
    sub(/:$/, "", at)
    key = "0x" sprintf("%016s", at)
    gsub(/ /, "0", key)
    if ($0 ~ /cmpxchg|\tcas[a]?[l]?[bh]?\t|\tst[l]?xr/)
        exchange[key] = 1
    if (addresses)
        print key
    next
}

# addr2line prints the address, then a function and a file:line per inlining level, innermost first.
/^0x/ { flush(); address = $1; want = "name"; next }
want == "name" { candidate = $1; want = "where"; next }
want == "where" {
    want = "name"
    if (file == "" && match($1, /es_[a-z_]+\.c:[0-9]+$/)) {
        split(substr($1, RSTART, RLENGTH), part, ":")
        name = candidate; file = part[1]; line = part[2]
    }
}
END { flush() }
