# The core's sources, for every program that is built from them. CSRC is their folder.
CORE_SOURCES := $(wildcard $(CSRC)/*/es_*.c)
CORE_HEADERS := $(wildcard $(CSRC)/*/es_*.h)
CORE         := $(notdir $(basename $(CORE_SOURCES)))
vpath es_%.c $(patsubst %/,%,$(sort $(dir $(CORE_SOURCES))))
