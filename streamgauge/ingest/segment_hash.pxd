"""The types of `segment_hash.py` for the compiled build."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from *:
    """
    #include <string.h>
    static inline uint64_t word_at(const uint8_t *text) {
        uint64_t word;
        memcpy(&word, text, 8);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
    #endif
        return word;
    }
    """
    uint64_t word_at(const uint8_t *text) noexcept

cdef uint64_t _BITS, _FACTOR, _A, _B, _C, _D, _LENGTH
cdef object _pack
cdef bint _COMPILED

@cython.final
cdef class SegmentHash:
    cdef uint64_t _key_0, _key_1, _start, _state, _word
    cdef int64_t _bits
    cdef readonly int64_t size

    cpdef begin(self)
    cpdef set_to(self, SegmentHash other)
    @cython.locals(text='const uint8_t *', state=uint64_t, word=uint64_t, bits=int64_t, byte=uint64_t)
    cpdef feed(self, bytes data, int64_t start, int64_t end)
    @cython.locals(state=uint64_t)
    cpdef bytes digest(self)

@cython.locals(a=uint64_t, b=uint64_t, c=uint64_t, d=uint64_t, n=int64_t)
cpdef uint64_t siphash(uint64_t key_0, uint64_t key_1, uint64_t first, uint64_t second)
