/* Functions of Python that make kept launches: c_calls.py builds them, and says what each is given.

   A machine with a C compiler may have no headers of Python, so these functions are declared here. They are of the
   stable interface, or exported by CPython 3.10 and later: one that is absent leaves the library unloaded. */
typedef struct _object { void *unknown; } Object;
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
extern Object *PyObject_Type(Object *);
extern int PyObject_RichCompareBool(Object *, Object *, int), PyDict_Next(Object *, Size *, Object **, Object **);
extern Size PyTuple_Size(Object *), PyDict_Size(Object *);
extern Object *PyList_GetItem(Object *, Size);
extern double PyFloat_AsDouble(Object *);
extern int PyErr_ExceptionMatches(Object *);
extern void PyErr_Clear(void);
extern Object PyDict_Type, PyTuple_Type, PyList_Type, PyFloat_Type;
extern void *dlsym(void *, const char *);

/* Functions of torch's C interface, which take the address of a tensor, and where Python's object has that tensor.
   c_calls.py finds and tries them. `library` is 0 where it has not. */
static struct {
  void *library;
  int (*address)(void *, void **), (*dimensions)(void *, Word *), (*sizes)(void *, Word **), (*strides)(void *, Word **);
  int (*dtype)(void *, int *), (*device)(void *, int *), (*index)(void *, int *);
  void (*mark)(void *);           /* counts a write */
  _Bool (*function_modes)(void);  /* whether one is on */
  Word (*dispatch_modes)(void);   /* how many are on */
  _Bool (*requires_grad)(void *); /* of the tensor's implementation, to which a tensor is a pointer */
  Word tensor, keys;              /* bytes from the object to the tensor, and from its implementation to its keys */
  Word counted;                   /* keys of a tensor whose writes are counted */
  Word included, excluded;        /* the keys of a thread have these bits turned */
  Object *increment;              /* the function of Python that counts writes */
  Object *kind, *parameter;       /* the classes whose tensors torch's functions take */
} torch;

/* c_calls.py has the same */
enum { DIMENSIONS = 8, CLASS = 0, KEYS, SEEN, DTYPE, DEVICE, INDEX, RECORDS, RANK, SIZES, FACTS = SIZES + 2 * DIMENSIONS };

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

/* An object's class, which the object holds. */
static Object *class_of(Object *x) {
  Object *found = PyObject_Type(x);
  Py_DecRef(found);
  return found;
}

/* The class of a tensor that torch's C interface takes; else 0. */
static Object *plain_class(Object *x) {
  if (!torch.library) return 0;
  Object *found = class_of(x);
  return found == torch.kind || found == torch.parameter ? found : 0;
}

static Word address_of(const Plan *plan, Object *x) {
  void *found;
  if (plain_class(x) && !torch.address((char *)x + torch.tensor, &found)) return (Word)found;
  return number(PyObject_VectorcallMethod(plan->address, &x, 1, 0));
}

static __thread const Word *thread_keys; /* that this thread includes in each tensor's, and excludes */

void learn(const void *given) { torch = *(typeof(torch) *)given; }

/* What torch's own guards compare: a tensor's class, keys, type, device, whether it requires a gradient, sizes and
   strides. Returns whether they were had; with `kept`, whether they are the same. Sizes are asked of tensors alone
   whose keys are those kept: others may have none. */
int facts(Object *x, Word *into, const Word *kept) {
  Object *kind = plain_class(x);
  if (!kind) return 0;
  if (!thread_keys && !(thread_keys = dlsym(torch.library, "_ZN3c104impl26raw_local_dispatch_key_setE"))) return 0;
  void *tensor = (char *)x + torch.tensor;
  char *of_torch = *(char **)tensor;
  into[CLASS] = (Word)kind;
  into[KEYS] = *(Word *)(of_torch + torch.keys);
  into[SEEN] = (into[KEYS] | (thread_keys[0] ^ torch.included)) & ~(thread_keys[1] ^ torch.excluded);
  if (kept && (into[CLASS] != kept[CLASS] || into[KEYS] != kept[KEYS] || into[SEEN] != kept[SEEN])) return 0;
  int dtype, device, index;
  Word *sizes, *strides;
  if (torch.dtype(tensor, &dtype) || torch.device(tensor, &device) || torch.index(tensor, &index)) return 0;
  if (torch.dimensions(tensor, into + RANK) || into[RANK] > DIMENSIONS) return 0;
  if (torch.sizes(tensor, &sizes) || torch.strides(tensor, &strides)) return 0;
  into[DTYPE] = dtype, into[DEVICE] = device, into[INDEX] = index, into[RECORDS] = torch.requires_grad(of_torch);
  for (Word i = 0; i < into[RANK]; i++) into[SIZES + i] = sizes[i], into[SIZES + DIMENSIONS + i] = strides[i];
  if (!kept) return 1;
  for (Word i = DTYPE; i < SIZES; i++)
    if (into[i] != kept[i]) return 0;
  for (Word i = 0; i < into[RANK]; i++)
    if (sizes[i] != kept[SIZES + i] || strides[i] != kept[SIZES + DIMENSIONS + i]) return 0;
  return 1;
}

/* A tensor of a guard: the first tensor of the call that is the same object, and one before it that begins at the same
   address or -1. */
typedef struct { Word first, beside, facts[FACTS]; } Kept;

/* Whether tensors have these facts, and are the same objects where those were: of self, (their number and `Kept`s, False,
   True). */
Object *alike(Object *self, Object *const *given, Size count) {
  const Word *number = PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
  const Kept *kept = (const Kept *)(number + 1);
  Word found[FACTS];
  int holds = count == *number;
  for (Size i = 0; holds && i < count; i++, kept++) {
    for (Size j = 0; j < i; j++) holds &= (given[i] == given[j]) == (kept->first == kept[j - i].first);
    holds = holds && (kept->first != i || facts(given[i], found, kept->facts));
    void *one, *other;
    if (holds && kept->beside >= 0)
      holds = !torch.address((char *)given[i] + torch.tensor, &one) &&
              !torch.address((char *)given[kept->beside] + torch.tensor, &other) && one == other;
  }
  return new_reference(PyTuple_GetItem(self, 1 + holds));
}

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

/* Whether torch's own function may count a write to a tensor: it throws for one of inference mode. */
static int counts(const Plan *plan, Object *x) {
  if (plan->mark != torch.increment || !plain_class(x)) return 0;
  Word keys = *(Word *)(*(char **)((char *)x + torch.tensor) + torch.keys);
  return (keys & torch.counted) == torch.counted;
}

/* Count a write to tensors by the function of Python. 0 with an exception. */
static int marked_by(const Plan *plan, Object *const *given, const Word *written) {
  Object *each = PyTuple_New(written[-1]);
  for (Word i = 0; each && i < written[-1]; i++) PyTuple_SetItem(each, i, new_reference(given[written[i]]));
  Object *marked = each ? call(plan->mark, each, 1) : 0;
  if (each) Py_DecRef(each);
  if (marked) Py_DecRef(marked);
  return marked != 0;
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
    Word i = 0;
    while (i < written[-1] && counts(plan, given[written[i]])) i++;
    if (i == written[-1])
      while (i) torch.mark((char *)given[written[--i]] + torch.tensor);
    else if (!marked_by(plan, given, written)) return 0;
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

/* What asks whether a mode has to see a call: of functions, of dispatch; and the variables of a module with the level of
   forward derivatives, and its name. */
typedef struct { Object *functions, *dispatch, *forward, *level; } Modes;

/* 1 where a mode has to see a call, 0, or -1 with an exception. */
static int seen_by_mode(const Modes *modes) {
  int mode = torch.library ? torch.function_modes() : truth(call(modes->functions, 0, 0));
  if (!mode) mode = torch.library ? torch.dispatch_modes() != 0 : truth(call(modes->dispatch, 0, 0));
  if (mode) return mode;
  Object *level = PyDict_GetItemWithError(modes->forward, modes->level);
  return level && PyLong_AsLongLong(level) < 0 ? -(PyErr_Occurred() != 0) : 1;
}

/* What a dict has by an object's address; 0 for nothing, None and False. With a reference of its own: another thread may
   drop it meanwhile. */
static Object *by_address(Object *dict, Word address) {
  Object *id = PyLong_FromVoidPtr((void *)address), *found = id ? PyDict_GetItemWithError(dict, id) : 0;
  if (id) Py_DecRef(id);
  return found && PyObject_IsTrue(found) > 0 ? new_reference(found) : 0;
}

/* Where a kept call is looked for by tensors: guards by ids, and the words of `LastCalls`: the place of the tensor whose id
   finds it, the number of tensors, and the place of each in the call. */
typedef struct { Object *last; const Word *order; } Places;

/* What a kept call makes of tensors; None where the id or the guard says no. */
static Object *made_again(const Places *places, Object *none, Object *const *given) {
  const Word *order = places->order;
  Word count = order[1];
  Object *found = by_address(places->last, (Word)given[order[0]]);
  if (!found) return PyErr_Occurred() ? 0 : new_reference(none);
  Object *tensors[count], *result = 0;
  for (Size i = 0; i < count; i++) tensors[i] = given[order[2 + i]];
  int holds = truth(PyObject_VectorcallDict(PyTuple_GetItem(found, 0), tensors, count, 0));
  if (holds > 0) result = PyObject_VectorcallDict(PyTuple_GetItem(found, 2), tensors, count, 0);
  else if (!holds) result = new_reference(none);
  Py_DecRef(found);
  return result;
}

/* The same, or None where a mode has to see the call: of self, (None, the address of: modes and places). */
Object *again(Object *self, Object *const *given, Size count) {
  Object *none = PyTuple_GetItem(self, 0);
  const Modes *modes = PyLong_AsVoidPtr(PyTuple_GetItem(self, 1));
  const Places *places = (const Places *)(modes + 1);
  if (count != places->order[1]) return new_reference(none);
  int mode = seen_by_mode(modes);
  if (mode) return mode < 0 ? 0 : new_reference(none);
  return made_again(places, none, given);
}

/* None in place of an exception of these kinds. */
static Object *none_for(Object *errors, Object *none) {
  if (!PyErr_ExceptionMatches(errors)) return 0;
  PyErr_Clear();
  return new_reference(none);
}

/* A kept call by options and tensors: of self, (the address of modes, None, a dict of `LastCalls` by options and number, its
   attribute, errors of calls that are none). */
Object *by_options(Object *self, Object *const *given, Size count) {
  const Modes *modes = PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
  Object *none = PyTuple_GetItem(self, 1), *errors = PyTuple_GetItem(self, 4), *result = 0;
  int mode = seen_by_mode(modes);
  if (mode) return mode < 0 ? 0 : new_reference(none);
  Object *key = PyTuple_New(2), *number = PyLong_FromLongLong(count - 1);
  if (!key || !number) return 0;
  PyTuple_SetItem(key, 0, new_reference(given[0]));
  PyTuple_SetItem(key, 1, number);
  Object *calls = PyDict_GetItemWithError(PyTuple_GetItem(self, 2), key);
  Py_DecRef(key);
  Object *of = calls ? PyObject_GetAttr(calls, PyTuple_GetItem(self, 3)) : 0;
  if (of) {
    result = made_again(PyLong_AsVoidPtr(of), none, given + 1);
    Py_DecRef(of);
  } else if (!PyErr_Occurred()) return new_reference(none);
  return result ? result : none_for(errors, none);
}

/* A call with options, and where its launch finds what it takes: the words of `c_calls.RepeatPlan`. Behind them lie five
   lists of so many entries: the tensors of each argument, options, names, numbers, attributes. */
typedef struct {
  Object *none, *check, *product, *grad, *word, *given, *errors;
  Word arguments, options, operands; /* of the call, and in `given`: -1 for a None, -2 where there is no such option */
  Word compared, named, numbers, tensors;
} Repeat;

typedef struct { Object *kind; Word count; } Argument; /* 0: a tensor; tuple, list, or a class with so many attributes */
typedef struct { Object *name, *value; } Attribute;    /* 0: a tensor; else the same object */
typedef struct { Word in_given; Object *name, *value; Word is_value; } Same; /* an option as it has to be */
typedef struct { Word in_given; Object *name; } Named;
typedef struct { Object *operand, *name; double most; } Number; /* 0: every number by the function of Python */

/* Whether an object is the kept one, or equal and of its type where it is a value. -1 with an exception. */
static int same(Object *x, const Same *kept) {
  if (!x || x == kept->value) return x != 0;
  if (!kept->is_value || class_of(x) != class_of(kept->value)) return 0;
  Object *held = new_reference(x); /* a comparison may run code that drops it */
  int equal = PyObject_RichCompareBool(held, kept->value, 2);
  Py_DecRef(held);
  return equal;
}

/* The word of a number, as `parameters.number_word` has it; 0 with an exception. */
static Object *word_of(const Repeat *plan, const Number *number, Object *x) {
  if (class_of(x) == &PyFloat_Type) {
    double value = PyFloat_AsDouble(x);
    union { float number; unsigned word; } kept = {(float)value};
    if (-number->most < value && value < number->most) return PyLong_FromLongLong(kept.word);
  }
  Object *both[2] = {number->operand, x};
  return PyObject_VectorcallDict(plan->word, both, 2, 0);
}

/* Tensors and words of a call into `found`, which has references of its own to them. Returns whether the call is one
   like that which was kept, -1 with an exception. */
static int taken_apart(const Repeat *plan, Object *arguments, Object *options, Object **found, Word *taken) {
  const Argument *argument = (const Argument *)(plan + 1);
  const Same *each = (const Same *)(argument + plan->arguments);
  const Named *named = (const Named *)(each + plan->compared);
  const Number *number = (const Number *)(named + plan->named);
  const Attribute *own = (const Attribute *)(number + plan->numbers);
  if (PyTuple_Size(arguments) != plan->arguments || PyDict_Size(options) != plan->options) return 0;
  Object *given = plan->operands == -2 ? 0 : PyDict_GetItemWithError(options, plan->given);
  if (plan->operands == -1 && given != plan->none) return 0;
  if (plan->operands >= 0 && (!given || class_of(given) != &PyDict_Type || PyDict_Size(given) != plan->operands)) return 0;
  for (Word i = 0; i < plan->compared; i++, each++) {
    int equal = same(PyDict_GetItemWithError(each->in_given ? given : options, each->name), each);
    if (equal <= 0) return equal;
  }
  for (Word i = 0; i < plan->arguments; i++, argument++) {
    Object *x = PyTuple_GetItem(arguments, i);
    if (argument->kind && class_of(x) != argument->kind) return 0;
    int list = argument->kind == &PyList_Type, several = list || argument->kind == &PyTuple_Type;
    for (Word j = 0; argument->kind && !several && j < argument->count; j++, own++) {
      Object *value = PyObject_GetAttr(x, own->name);
      if (!value) return -1;
      if (!own->value) found[(*taken)++] = value;
      else Py_DecRef(value);
      if (own->value && value != own->value) return 0;
    }
    if (argument->kind && !several) continue;
    if (several && (list ? PyList_Size(x) : PyTuple_Size(x)) != argument->count) return 0;
    for (Word j = 0; j < argument->count; j++)
      found[(*taken)++] = new_reference(!several ? x : list ? PyList_GetItem(x, j) : PyTuple_GetItem(x, j));
  }
  for (Word i = 0; i < plan->named; i++, named++) {
    Object *x = PyDict_GetItemWithError(named->in_given ? given : options, named->name);
    if (!x) return 0;
    found[(*taken)++] = new_reference(x);
  }
  int holds = truth(PyObject_VectorcallDict(plan->check, found, *taken, 0));
  for (Word i = 0; holds > 0 && i < plan->numbers; i++, number++) {
    Object *x = PyDict_GetItemWithError(given, number->name);
    if (!x) return 0;
    Object *held = new_reference(x); /* the function of Python may run code that drops it */
    Object *word = word_of(plan, number, held);
    Py_DecRef(held);
    if (!word) return -1;
    found[(*taken)++] = word;
  }
  return holds;
}

/* A kept call with options: of self, (the address of `Repeat`, what it holds); given its arguments and options. */
Object *repeat(Object *self, Object *const *given, Size count) {
  (void)count; /* two: see `RepeatedCalls.first` */
  const Repeat *plan = PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
  Object *found[plan->tensors + plan->numbers + 1], *result = 0;
  Word taken = 0;
  int like = plan->grad == plan->none ? 0 : truth(call(plan->grad, 0, 0));
  like = like ? -(like < 0) : taken_apart(plan, given[0], given[1], found, &taken);
  if (like > 0) result = PyObject_VectorcallDict(plan->product, found, taken, 0);
  else result = PyErr_Occurred() ? none_for(plan->errors, plan->none) : new_reference(plan->none);
  while (taken) Py_DecRef(found[--taken]);
  return result;
}

/* Where kept calls of a function are found: the words of `c_calls.first`. Behind them lie calls of tensors alone, or of
   these and one named one. */
typedef struct {
  Modes modes;
  Object *none, *last, *epilogue, *errors;
  Word weight, lasts;
} First;

typedef struct { Word count; Object *name; Places places; } Last; /* 0: no name */

/* Of a call's arguments and options what its kept launch makes, None without one. */
Object *first(Object *self, Object *const *given, Size count) {
  const First *plan = PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
  const Last *last = (const Last *)(plan + 1);
  Object *arguments = given[0], *options = given[1], *name = 0, *named = 0, *result = 0;
  Size size = PyTuple_Size(arguments), more = PyDict_Size(options), at = 0;
  if (size <= plan->weight) return new_reference(plan->none);
  int mode = seen_by_mode(&plan->modes);
  if (mode) return mode < 0 ? 0 : new_reference(plan->none);
  Object *shared = PyTuple_GetItem(arguments, plan->weight), *kind = class_of(shared);
  int list = kind == &PyList_Type, several = list || kind == &PyTuple_Type;
  if (more == 1) PyDict_Next(options, &at, &name, &named);
  for (Word i = 0; more < 2 && !several && i < plan->lasts; i++, last++) {
    if (last->count != size || last->name != name) continue;
    Object *tensors[size + 1];
    for (Size j = 0; j < size; j++) tensors[j] = PyTuple_GetItem(arguments, j);
    tensors[size] = named;
    result = made_again(&last->places, plan->none, tensors);
    if (!result) result = none_for(plan->errors, plan->none); /* no dense tensors */
    if (result != plan->none) return result;
    Py_DecRef(result);
    break;
  }
  if (several && (list ? PyList_Size(shared) : PyTuple_Size(shared)) > 0)
    shared = list ? PyList_GetItem(shared, 0) : PyTuple_GetItem(shared, 0);
  Object *epilogue = more ? PyDict_GetItemWithError(options, plan->epilogue) : 0;
  if (epilogue == plan->none) epilogue = 0;
  Object *known = by_address(plan->last, (Word)shared ^ (Word)epilogue);
  if (!known) return PyErr_Occurred() ? 0 : new_reference(plan->none);
  result = PyObject_VectorcallDict(known, given, count, 0);
  Py_DecRef(known);
  return result;
}
