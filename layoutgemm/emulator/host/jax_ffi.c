/* A handler of XLA's foreign functions for the CPU that hands its buffers to Python: what `cutlass_call` is lowered to.

   `layoutgemm_call` is set by jax_calls.py. The header comes with JAX: jax.ffi.include_dir(). */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "xla/ffi/api/c_api.h"

/* Returns an error's text, or NULL. */
typedef const char *(*call_function)(const char *key, size_t length, size_t count, void **data, int64_t **dims);
call_function layoutgemm_call;

enum { MOST = 256 }; /* buffers of a call */

static XLA_FFI_Error *error(XLA_FFI_CallFrame *frame, const char *text) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, text, XLA_FFI_Error_Code_INTERNAL};
  return frame->api->XLA_FFI_Error_Create(&args);
}

/* The type of an extension has one name up to JAX 0.10 and another since. */
static int metadata(XLA_FFI_CallFrame *frame) {
  for (__typeof__(frame->extension_start) one = frame->extension_start; one; one = one->next)
    if (one->type == XLA_FFI_Extension_Metadata) {
      XLA_FFI_Metadata *asked = ((XLA_FFI_Metadata_Extension *)one)->metadata;
      asked->api_version.major_version = XLA_FFI_API_MAJOR;
      asked->api_version.minor_version = XLA_FFI_API_MINOR;
      return 1;
    }
  return 0;
}

XLA_FFI_Error *layoutgemm_xla(XLA_FFI_CallFrame *frame) {
  if (metadata(frame))
    return NULL;
  size_t count = 0;
  void *data[MOST];
  int64_t *dims[MOST];
  if (frame->args.size + frame->rets.size > MOST)
    return error(frame, "the emulator takes at most 256 buffers of a call");
  for (int side = 0; side < 2; side++) {
    void **buffers = side ? frame->rets.rets : frame->args.args;
    for (int64_t i = 0; i < (side ? frame->rets.size : frame->args.size); i++, count++) {
      XLA_FFI_Buffer *buffer = buffers[i];
      data[count] = buffer->data;
      dims[count] = buffer->dims;
    }
  }
  const XLA_FFI_ByteSpan *key = NULL;
  for (int64_t i = 0; i < frame->attrs.size; i++) {
    const XLA_FFI_ByteSpan *name = frame->attrs.names[i];
    if (name->len == 3 && !memcmp(name->ptr, "key", 3) && frame->attrs.types[i] == XLA_FFI_AttrType_STRING)
      key = frame->attrs.attrs[i];
  }
  if (!key)
    return error(frame, "a call without the key of its kernel");
  const char *said = layoutgemm_call(key->ptr, key->len, count, data, dims);
  return said ? error(frame, said) : NULL;
}
