# The core's sources, for every program that is built from them. CSRC is their folder.
CORE_SOURCES := $(wildcard $(CSRC)/*/es_*.c)
CORE_HEADERS := $(wildcard $(CSRC)/*/es_*.h)
CORE         := $(notdir $(basename $(CORE_SOURCES)))
# The core without replays and planning, for programs that have none.
REPLAY       := $(notdir $(basename $(wildcard $(CSRC)/replay/es_*.c $(CSRC)/planning/es_*.c)))
RING         := $(filter-out $(REPLAY),$(CORE))
vpath es_%.c $(patsubst %/,%,$(sort $(dir $(CORE_SOURCES))))
