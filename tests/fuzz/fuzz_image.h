/* For targets that open an image: bytes that may be anything.
 *
 * An input is a mode byte, races, and a body. The body is the bytes of the image (RAW), or a program that makes a good
 * image and damages it. A race changes the image while it is read. What is an image, fuzz_target says.
 */
#ifndef FUZZ_IMAGE_H
#define FUZZ_IMAGE_H

#include "fuzz.h"

enum fuzz_mode { RAW = 1, RACES = 2, FIT_OFFSETS = 4, FIT_HASH = 8 };

typedef struct fuzz_images {
    size_t body_at;        /* bytes of an input before its body */
    uint64_t header;       /* bytes of an image that are its header, which is mutated more often */
    uint32_t max_edits;    /* at once, of a raw image */
    uint32_t program_step; /* how many bytes each seed's program is longer than the one before */
    void (*read_races)(fuzz_in *in);
    uint8_t *(*good)(fuzz_in *in, uint64_t *size);
    uint8_t *(*damaged)(fuzz_in *in, uint8_t mode, uint64_t *size);
    /* Damages a field. */
    void (*edit)(fuzz_in *in, uint8_t *base, uint64_t size);
    /* Makes the hash fit, and maybe the offsets: the size that the image says then, or 0 if it cannot be done. */
    uint64_t (*repair)(uint8_t *base, uint64_t size, bool offsets);
    /* The rest of the input, or the end of a raw image, may say how. */
    void (*use)(uint8_t *base, uint64_t size, fuzz_in *in, uint8_t mode);
} fuzz_images;

/* The one of this program. */
extern const fuzz_images fuzz_target;

/* Bytes that an image has after this in a block of its own; the new ones are 0. */
uint8_t *fuzz_resized(uint8_t *base, uint64_t *size, uint64_t to);
/* Repairs an image, which gets the size that it says if that is at most so much. */
uint8_t *fuzz_repaired(uint8_t *base, uint64_t *size, bool offsets, uint64_t most);

#endif
