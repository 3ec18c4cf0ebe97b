/* Functions of Python that make kept launches: c_calls.py builds them, and says what each is given.

   A machine with a C compiler may have no headers of Python, so these functions are declared here. They are of the
   stable interface, or exported by CPython 3.10 and later: one that is absent leaves the library unloaded. */
typedef struct _object Object;
typedef long Size;
typedef long long Word;

extern Object *PyObject_VectorcallDict(Object *, Object *const *, unsigned long, Object *);
extern Object *PyObject_VectorcallMethod(Object *, Object *const *, unsigned long, Object *);
extern Object *PyObject_GetAttr(Object *, Object *);
extern int PyObject_IsTrue(Object *);
extern Object *PyTuple_GetItem(Object *, Size), *PyTuple_New(Size);
extern int PyTuple_SetItem(Object *, Size, Object *);
extern Size PyList_Size(Object *);
extern Object *PyDict_GetItemWithError(Object *, Object *);
extern Object *PyErr_Occurred(void), *PyLong_FromLongLong(Word);
extern Word PyLong_AsLongLong(Object *);
extern unsigned long long PyLong_AsUnsignedLongLongMask(Object *);
extern Object *PyLong_FromVoidPtr(void *);
extern void *PyLong_AsVoidPtr(Object *), *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *), Py_IncRef(Object *), Py_DecRef(Object *);

/* What a launch does: the words of `c_calls.product`, in this order. Behind them lie the template of the arguments and
   seven lists, each its length and then its entries. */
typedef struct {
  Object *address, *device, *index, *stream, *ordered, *empty, *fill, *mark, *bind, *open, *other, *refused, *none;
  Object *memory, *step, *byte; /* of the memory that the launches share: a tensor's shape, strides and type, */
  Object *size, *take, *leave;  /* or its bytes and functions that allocate and free it, where `take` is not None */
  Word least, low, arguments, tensors, given, optional, into;
} Plan;

static __thread int bound; /* whether this thread has a CUDA context */

static Object *call(Object *function, Object *given, Size count) {
  return PyObject_VectorcallDict(function, &given, count, 0);
}

static Object *new_reference(Object *x) {
  Py_IncRef(x);
  return x;
}

/* A number that is released here. -1 with an exception for none. */
static Word number(Object *x) {
  if (!x) return -1;
  Word found = PyLong_AsLongLong(x);
  Py_DecRef(x);
  return found;
}

/* 1 for a true value, 0, or -1 with an exception. It is released here. */
static int truth(Object *x) {
  if (!x) return -1;
  int found = PyObject_IsTrue(x);
  Py_DecRef(x);
  return found;
}

static Word address_of(const Plan *plan, Object *x) { return number(PyObject_VectorcallMethod(plan->address, &x, 1, 0)); }

/* Launch one after another, without Python's lock: a launch waits where the GPU's queue is full. Returns a CUDA error,
   and above it the number of the launch that was refused. */
static Word launch(Word *values, const Word *list, Word stream) {
  Word error = 0, count = *list++;
  void *thread = PyEval_SaveThread();
  for (Word i = 0; i < count && !error; i++) {
    void (*entry)(void **) = (void (*)(void **))*list++;
    Word places = *list++;
    Word own_stream = stream;
    union { Word all; unsigned error; } status = {0};
    void *addresses[places + 2];
    for (Word j = 0; j < places; j++) addresses[j] = values + list[j];
    addresses[places] = &own_stream;
    addresses[places + 1] = &status;
    entry(addresses);
    if (status.error) error = i << 32 | status.error;
    list += places;
  }
  PyEval_RestoreThread(thread);
  return error;
}

/* The new tensors of a call: what `making` returns for tensors, and for words of numbers. */
Object *product(Object *self, Object *const *given, Size count) {
  const Plan *plan = PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
  Size more = count - plan->given;
  if ((more && !(plan->optional && more == 1)) || PyList_Size(plan->open))
    return PyObject_VectorcallDict(plan->other, given, count, 0);
  const Word *next = (const Word *)(plan + 1);
  Word values[plan->arguments + 1], at[plan->tensors + 1], bits = 0, freed = 0;
  for (Word i = 0; i < plan->arguments; i++) values[i] = *next++;
  for (Word i = *next++; i; i--, next += 3) { /* the tensor, the argument, bytes behind the tensor's address */
    Word found = address_of(plan, given[next[0]]);
    if (found == -1 && PyErr_Occurred()) return 0;
    freed |= found < plan->least;
    found += next[2];
    bits |= found;
    at[next[0]] = values[next[1]] = found;
  }
  Word here = number(call(plan->device, 0, 0));
  if (here == -1 && PyErr_Occurred()) return 0;
  if (bits & plan->low || (plan->low && freed) || here != PyLong_AsLongLong(plan->index)) return new_reference(plan->none);
  if (plan->ordered != plan->none) {
    int ordered = truth(call(plan->ordered, 0, 0));
    if (ordered) return ordered < 0 ? 0 : new_reference(plan->none);
  }
  const Word *spans = next + 1;
  next = spans + *next;
  Word writes = *next++;
  if (writes) { /* tensors that share memory with none: pairs of a tensor and one of the others */
    const Word *written = next + 1;
    next += *next + 1;
    for (Word pairs = *next++; pairs; pairs--, next += 2)
      if (at[next[1]] < at[next[0]] + spans[next[0]] && at[next[0]] < at[next[1]] + spans[next[1]])
        return new_reference(plan->none);
    Object *each = PyTuple_New(written[-1]);
    for (Word i = 0; each && i < written[-1]; i++) PyTuple_SetItem(each, i, new_reference(given[written[i]]));
    Object *marked = each ? call(plan->mark, each, 1) : 0;
    if (each) Py_DecRef(each);
    if (!marked) return 0;
    Py_DecRef(marked);
  }
  const Word *inner = next + 1;
  next = inner + 2 * *next;
  Word news = *next++, made_count = 0;
  Object *made[news + 1], *result = 0, *of_stream = 0, *taken = 0;
  for (; made_count < news; made_count++, next += 5) { /* shape, strides, type, argument or -1, first values or 0 */
    Object *x = made[made_count] = PyObject_VectorcallDict(plan->empty, (Object *const *)next, 3, 0);
    if (!x) goto done;
    if (next[4]) {
      Object *both[2] = {x, (Object *)next[4]}, *filled = PyObject_VectorcallDict(plan->fill, both, 2, 0);
      if (!filled) { made_count++; goto done; }
      Py_DecRef(filled);
    }
    if (next[3] >= 0 && (values[next[3]] = address_of(plan, x)) == -1) { made_count++; goto done; }
  }
  if (inner[-1] && plan->take == plan->none) {
    Object *of_memory[3] = {plan->memory, plan->step, plan->byte};
    Object *x = PyObject_VectorcallDict(plan->empty, of_memory, 3, 0);
    if (!x) goto done;
    made[made_count++] = x;
    Word begin = address_of(plan, x);
    if (begin == -1) goto done;
    for (Word i = 0; i < inner[-1]; i++) values[inner[2 * i]] = begin + inner[2 * i + 1];
  }
  for (Word i = 0, words = *next++; i < words; i++) {
    values[*next++] = (Word)PyLong_AsUnsignedLongLongMask(given[plan->tensors + i]);
    if (PyErr_Occurred()) goto done;
  }
  if (!bound) {
    Object *x = call(plan->bind, plan->index, 1);
    if (!x) goto done;
    Py_DecRef(x);
    bound = 1;
  }
  if (!(of_stream = call(plan->stream, plan->index, 1))) goto done;
  Word stream = PyLong_AsLongLong(of_stream);
  if (stream == -1 && PyErr_Occurred()) goto done;
  const Word *returns = next + 1;
  next = returns + *next;
  if (inner[-1] && plan->take != plan->none) {
    Object *both[2] = {plan->size, of_stream};
    if (!(taken = PyObject_VectorcallDict(plan->take, both, 2, 0))) goto done;
    Word begin = PyLong_AsLongLong(taken);
    for (Word i = 0; i < inner[-1]; i++) values[inner[2 * i]] = begin + inner[2 * i + 1];
  }
  Word error = launch(values, next, stream);
  if (taken) { /* the stream's next memory may be the same: its launches come behind these */
    Object *left = call(plan->leave, taken, 1);
    if (!left) goto done;
    Py_DecRef(left);
  }
  if (error) {
    Object *x = PyLong_FromLongLong(error);
    result = x ? call(plan->refused, x, 1) : 0; /* it raises */
    if (x) Py_DecRef(x);
    goto done;
  }
  Word before = plan->into >= 0, total = returns[-1] + before;
  Object *several = total == 1 ? 0 : PyTuple_New(total);
  for (Word i = 0; i < total && (total == 1 || several); i++) {
    Word place = i < before ? 0 : returns[i - before];
    Object *x = i < before ? given[plan->into] : place < 0 ? plan->none : made[place];
    Py_IncRef(x);
    if (total == 1) result = x;
    else PyTuple_SetItem(several, i, x);
  }
  if (several) result = several;
done:
  while (made_count) Py_DecRef(made[--made_count]);
  if (of_stream) Py_DecRef(of_stream);
  if (taken) Py_DecRef(taken);
  return result;
}

/* Whether no tensor is nested, and the guard holds: of self, (the guard, "is_nested", False). */
Object *plain(Object *self, Object *const *given, Size count) {
  Object *guard = PyTuple_GetItem(self, 0), *name = PyTuple_GetItem(self, 1);
  for (Size i = 0; i < count; i++) {
    int nested = truth(PyObject_GetAttr(given[i], name));
    if (nested) return nested < 0 ? 0 : new_reference(PyTuple_GetItem(self, 2));
  }
  return PyObject_VectorcallDict(guard, given, count, 0);
}

/* What a kept call makes of tensors, found by the id of one of them; None where a mode, the id or the guard says no. Of
   self, (None, guards by ids, two functions of modes, a module with the level of forward derivatives, its name, the
   address of: the place of that tensor, the number of tensors, and the place of each in the call). */
Object *again(Object *self, Object *const *given, Size count) {
  Object *none = PyTuple_GetItem(self, 0);
  const Word *order = PyLong_AsVoidPtr(PyTuple_GetItem(self, 6));
  if (count != order[1]) return new_reference(none);
  for (Size i = 2; i < 4; i++) {
    int mode = truth(call(PyTuple_GetItem(self, i), 0, 0));
    if (mode) return mode < 0 ? 0 : new_reference(none);
  }
  Word level = number(PyObject_GetAttr(PyTuple_GetItem(self, 4), PyTuple_GetItem(self, 5)));
  if (level >= 0) return new_reference(none);
  Object *id = PyErr_Occurred() ? 0 : PyLong_FromVoidPtr((void *)given[order[0]]);
  if (!id) return 0;
  Object *found = PyDict_GetItemWithError(PyTuple_GetItem(self, 1), id);
  Py_DecRef(id);
  if (!found || found == none) return PyErr_Occurred() ? 0 : new_reference(none);
  Py_IncRef(found); /* another thread may drop it meanwhile */
  Object *tensors[count], *result = 0;
  for (Size i = 0; i < count; i++) tensors[i] = given[order[2 + i]];
  int holds = truth(PyObject_VectorcallDict(PyTuple_GetItem(found, 0), tensors, count, 0));
  if (holds > 0) result = PyObject_VectorcallDict(PyTuple_GetItem(found, 2), tensors, count, 0);
  else if (!holds) result = new_reference(none);
  Py_DecRef(found);
  return result;
}
