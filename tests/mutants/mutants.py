"""The mutants of the C core: bugs, each put into it alone, that the suites have to notice."""

from consuming import CONSUMING
from ending import ENDING
from mutant import Mutant
from owning import OWNING
from producing import PRODUCING
from serving import SERVING

MUTANTS: tuple[Mutant, ...] = (*PRODUCING, *CONSUMING, *ENDING, *OWNING, *SERVING)
