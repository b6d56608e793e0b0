"""Acts or interrupts at each point where the interpreter looks for signals."""

import dis
import functools
import gc
import sys


@functools.cache
def interruptible(code):
    """The offsets of the bytecodes before which the interpreter looks for signals: after calls, and in loops."""
    before, offsets = "", set()
    for instruction in dis.get_instructions(code):
        if before.startswith("CALL") or before in ("RESUME", "JUMP_BACKWARD"):
            offsets.add(instruction.offset)
        before = instruction.opname
    return offsets


def at_opcode(n, act, *modules):
    """A trace function that acts at the n-th point where these modules can be interrupted, and what is left of n."""
    left, files = [n], {module.__file__ for module in modules}

    def trace(frame, event, arg):
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in interruptible(frame.f_code):
            left[0] -= 1
            if left[0] == 0:
                act()
        return trace

    return trace, left


def run_traced(function, trace):
    """Calls it under a trace function."""
    before = sys.gettrace()
    gc.disable()  # or the finalizer of another test's object could be interrupted
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
        gc.enable()


class Interrupt(BaseException):
    """Ctrl-C."""


def interrupt():
    """What the default handler of SIGINT does."""
    raise Interrupt
