/* Python's and numpy's scalars in place of arrays of shape (): the usual ones. Python deals with all others, and says
 * what is wrong (Spec.exact). */
#ifndef ES_PYTHON_SCALARS_H
#define ES_PYTHON_SCALARS_H

#include <Python.h>
#include <math.h>
#include <numpy/arrayobject.h>
#include <stdint.h>
#include <string.h>

/* What a leaf of shape () may have, if it is read here. */
typedef union {
    npy_bool flag;
    float f4;
    double f8;
    int64_t i8;
    uint64_t u8;
} scalar;

/* Of signed integers the number of bytes, of unsigned ones that number negated; 0: it is no integer. */
static inline int integer_bytes(int type)
{
    switch (type) {
    case NPY_BYTE:
        return sizeof(npy_byte);
    case NPY_SHORT:
        return sizeof(npy_short);
    case NPY_INT:
        return sizeof(npy_int);
    case NPY_LONG:
        return sizeof(npy_long);
    case NPY_LONGLONG:
        return sizeof(npy_longlong);
    case NPY_UBYTE:
        return -(int)sizeof(npy_ubyte);
    case NPY_USHORT:
        return -(int)sizeof(npy_ushort);
    case NPY_UINT:
        return -(int)sizeof(npy_uint);
    case NPY_ULONG:
        return -(int)sizeof(npy_ulong);
    case NPY_ULONGLONG:
        return -(int)sizeof(npy_ulonglong);
    default:
        return 0;
    }
}

static inline int read_signed(PyObject *value, int bytes, scalar *to)
{
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    const int shift = 64 - 8 * bytes;
    if (overflow || (int64_t)((uint64_t)number << shift) >> shift != number)
        return 0;
    int8_t one = (int8_t)number;
    int16_t two = (int16_t)number;
    int32_t four = (int32_t)number;
    to->i8 = number;
    if (bytes < 8)
        memcpy(to, bytes == 1 ? (void *)&one : bytes == 2 ? (void *)&two : (void *)&four, (size_t)bytes);
    return 1;
}

static inline int read_unsigned(PyObject *value, int bytes, scalar *to)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if (number == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    if (bytes < 8 && number >> 8 * bytes != 0)
        return 0;
    uint8_t one = (uint8_t)number;
    uint16_t two = (uint16_t)number;
    uint32_t four = (uint32_t)number;
    to->u8 = number;
    if (bytes < 8)
        memcpy(to, bytes == 1 ? (void *)&one : bytes == 2 ? (void *)&two : (void *)&four, (size_t)bytes);
    return 1;
}

/* A number that is finite stays so. */
static inline int read_float(PyObject *value, int type, scalar *to)
{
    double number = PyFloat_AsDouble(value);
    if (number == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    if (type == NPY_DOUBLE) {
        to->f8 = number;
        return 1;
    }
    to->f4 = (float)number;
    return isfinite(to->f4) || !isfinite(number);
}

/* Whether a value is a scalar that fits a dtype, in the native byte order: 1, and *to begins with its bytes; or 0. */
static inline int read_scalar(PyObject *value, PyObject *dtype, scalar *to)
{
    const PyArray_Descr *of = (const PyArray_Descr *)dtype;
    const int type = of->type_num;
    const int integer = integer_bytes(type), is_float = type == NPY_FLOAT || type == NPY_DOUBLE;
    if (!PyArray_ISNBO(of->byteorder) || (!integer && !is_float && type != NPY_BOOL))
        return 0;
    if (Py_TYPE(value) == of->typeobj) {
        PyArray_ScalarAsCtype(value, to);
        return 1;
    }
    if (PyBool_Check(value) && type == NPY_BOOL) {
        to->flag = value == Py_True;
        return 1;
    }
    const int is_integer = PyLong_CheckExact(value) || PyBool_Check(value);
    if (integer && is_integer)
        return integer > 0 ? read_signed(value, integer, to) : read_unsigned(value, -integer, to);
    return is_float && (is_integer || PyFloat_CheckExact(value)) ? read_float(value, type, to) : 0;
}

#endif
