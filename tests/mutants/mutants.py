"""The mutants of the C core. Each is one bug, and the suites must notice it."""

from completing import COMPLETING
from consuming import CONSUMING
from ending import ENDING
from holding import HOLDING
from keeping import KEEPING
from mutant import Mutant
from owning import OWNING
from producing import PRODUCING
from publishing import PUBLISHING
from serving import SERVING
from waiting import WAITING

MUTANTS: tuple[Mutant, ...] = (
    *PRODUCING,
    *CONSUMING,
    *ENDING,
    *OWNING,
    *SERVING,
    *WAITING,
    *KEEPING,
    *COMPLETING,
    *HOLDING,
    *PUBLISHING,
)
