"""The linked page of a matrix instruction. A, B and C as in the product, their holders, and tiles in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from layoutgemm.arguments import shown
from layoutgemm.atoms import CopyAtom, MmaAtom, OperandDescriptor, SmemTile, TiledMma, feeds, ldmatrix, operand_map
from layoutgemm.atoms.mma.tcgen05 import Tcgen05Atom
from layoutgemm.atoms.smem.descriptor import derive as derive_descriptor
from layoutgemm.atoms.smem.tile import as_tile
from layoutgemm.errors import AtomError, DescriptorError, LayoutError
from layoutgemm.layouts import ComposedLayout, Layout
from layoutgemm.lazy_numpy import np
from layoutgemm.view.pages.model import THREADS, Fact, Figure, Holder, Holders, Memory, PageMatrix, Table
from layoutgemm.view.pages.parts import axes, bank_of, bank_paint, holder_paint, shared_memory
from layoutgemm.view.pages.scales import BLOCK, scale_matrices

DIMS = {"A": ("m", "k"), "B": ("n", "k"), "C": ("m", "n")}
PLACES = {"A": "left", "B": "top", "C": "middle"}
ACROSS = {"A": 1, "B": 0, "C": 1}  # k of A and n of B and of C run from left to right
TMEM_LANES = 128
_BLOCKS = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1))  # of the operand that one matrix copy may fill

Tile: TypeAlias = SmemTile | Layout | ComposedLayout | None
Held = tuple[Table, Table, Table, Table]  # arrays (row, column, thread, value)


def operand_matrix(
    name: str,
    title: str,
    extent: tuple[int, int],
    holder: Holder | None,
    holders: Holders | None,
    memory: Memory | None = None,
    facts: tuple[Fact, ...] = (),
) -> PageMatrix:
    """Operand "A", "B" or "C" in its place in the product, with its paints."""
    paints = []
    if holders is not None and holder is not None:
        paints.append(holder_paint(holder, holders))
    if memory is not None:
        paints.append(bank_paint(bank_of(memory)))
    return PageMatrix(
        name, title, DIMS[name], extent, ACROSS[name], PLACES[name], holders, facts, tuple(paints), memory
    )


def product_figure(
    mma: MmaAtom | TiledMma,
    a: Tile = None,
    b: Tile = None,
    *,
    extent: tuple[int, int, int] | None = None,
    copy_a: CopyAtom | None = None,
    copy_b: CopyAtom | None = None,
    title: str | None = None,
) -> Figure:
    """The page of a matrix product. A left, B above, C between them, and the tiles of A and B in shared memory.

    mma      an atom, or one tiled over threads
    a, b     the operands' tiles in shared memory, (m, k) and (n, k): an SmemTile, or a layout under a swizzle. For an
             operand in shared memory the page names the descriptor that reads an element
    extent   (M, N, K) of the page; by default that of the tiles, else the instruction's own
    copy_a, copy_b   the ldmatrix that loads the operand from its tile into registers, proven to feed it; by default the
             widest that does, if any. The page names the lane that gives the address of an element's row

    Raises LayoutError where tiles, extents and instruction do not fit together, and for too many elements.

    >>> from layoutgemm.atoms import mma_sync, smem_tile
    >>> from layoutgemm.view.pages.html import product_html
    >>> html = product_html(mma_sync((16, 8, 16)), a=smem_tile((16, 64), "bf16", "K"))
    >>> "row address from" in html, len(html) < 100_000
    (True, True)
    """
    atom = mma.atom if isinstance(mma, TiledMma) else mma
    tiles = {name: _tile(atom, name, given) for name, given in (("A", a), ("B", b))}
    sizes = _extents(mma, tiles, extent)
    holder = _holder(mma)
    matrices = []
    for name in "ABC":
        rows, columns = (sizes["mnk".index(dim)] for dim in DIMS[name])
        size = (rows, columns)
        tile = tiles.get(name)
        copy = {"A": copy_a, "B": copy_b}.get(name)
        source = {"A": atom.a_source, "B": atom.b_source}.get(name, atom.c_source)
        if copy is not None and (tile is None or source != "rmem"):
            raise LayoutError(f"copy_{name.lower()} loads {name} from a tile into registers: give the tile of {name}, "
                              f"which {atom} takes from {source}")  # fmt: skip
        facts: tuple[Fact, ...] = ()
        holders: Holders | None = None
        if source == "rmem":
            holders = register_holders(mma, name, size)
        elif source == "tmem" and isinstance(atom, Tcgen05Atom):
            holders = tmem_holders(atom, name, size)
        elif isinstance(atom, Tcgen05Atom):
            facts = (Fact("block", axes(size)[0] // (size[0] // atom.cta_group)),) if atom.cta_group > 1 else ()
        memory = None
        if tile is not None:
            told: tuple[Fact, ...] = ()
            if source == "smem":
                told = _descriptor_facts(tile, atom, name, size)
            elif source == "rmem":
                told = _loaded(copy, tile, atom, name, size, isinstance(mma, TiledMma))
            memory = shared_memory(name, tile, told, atom.threads if isinstance(atom, Tcgen05Atom) else 1)
        matrices.append(operand_matrix(name, _words(atom, name, size, source), size, holder, holders, memory, facts))
    matrices += scale_matrices(mma, holder, sizes)
    blocks = {} if atom.scale is None else {BLOCK: ("k", atom.scale.vector)}
    return Figure(title or _heading(mma, atom), _how(atom), tuple(matrices), holder, blocks)


def _tile(atom: MmaAtom, name: str, given: Tile) -> SmemTile | None:
    element = atom.dtype_of(name)
    if given is None:
        return None
    tile = as_tile(given, element)
    if tile.dtype != element:
        raise LayoutError(f"the tile of {name} holds {tile.dtype}, and {name} of {atom} is {element}")
    return tile


def _extents(
    mma: MmaAtom | TiledMma, tiles: dict[str, SmemTile | None], wanted: tuple[int, int, int] | None
) -> tuple[int, int, int]:
    """(M, N, K) of the page: those asked for, else those of the tiles, else the instruction's."""
    atom = mma.atom if isinstance(mma, TiledMma) else mma
    m, n, k = mma.tile_mnk if isinstance(mma, TiledMma) else mma.shape_mnk
    blocks = atom.threads if isinstance(atom, Tcgen05Atom) else 1
    found = [m, n, k]
    for name, tile in tiles.items():
        if tile is not None:
            for place, size in zip(("mnk".index(dim) for dim in DIMS[name]), tile.extent, strict=True):
                found[place] = size * (blocks if place < 2 else 1)
    found = list(wanted) if wanted is not None else found
    if len(found) != 3:
        raise LayoutError(f"extent = {shown(wanted)}: three numbers, of M, N and K")
    for name, tile in tiles.items():
        if tile is None:
            continue
        want = tuple(found["mnk".index(dim)] for dim in DIMS[name])
        if (tile.extent[0] * blocks, tile.extent[1]) != want:
            shared = f" of each of {blocks} blocks" if blocks > 1 else ""
            raise LayoutError(
                f"the tile of {name}{shared} has {tile.extent[0]}x{tile.extent[1]} elements, and the product of "
                f"{found[0]}x{found[1]}x{found[2]} has an {name} of {want[0]}x{want[1]}"
            )
    for dim, size, one in zip("MNK", found, (m, n, k), strict=True):
        if size < 1 or size % one:
            raise LayoutError(f"{dim} = {shown(size)} is no multiple of {one}, which {atom} takes at a time")
    return found[0], found[1], found[2]


def _holder(mma: MmaAtom | TiledMma) -> Holder | None:
    atom = mma.atom if isinstance(mma, TiledMma) else mma
    if isinstance(atom, Tcgen05Atom):
        return Holder("lane", TMEM_LANES * atom.cta_group, TMEM_LANES, "block", "lane", "column", "LC")
    if atom.thread_ids is not None:
        return THREADS(int(max(atom.thread_ids.offsets())) + 1)
    return THREADS(mma.threads)


def register_holders(mma: MmaAtom | TiledMma, name: str, size: tuple[int, int]) -> Holders:
    """The holders of each element of an operand in registers, from the thread-value map."""
    atom = mma.atom if isinstance(mma, TiledMma) else mma
    if isinstance(mma, MmaAtom) and size == atom.tile_of(name):
        layout = atom.layout(name)
        t, v = np.indices((int(layout[0].size), int(layout[1].size)))
        at = np.asarray(layout(t, v), np.int64) + 0 * t
        thread = t if atom.thread_ids is None else np.asarray(atom.thread_ids(t), np.int64)
        held: Held = (at % size[0], at // size[0], thread, v)
        return Holders.of(size, held, value_labels(atom, name, (1, 1)))
    view = (mma if isinstance(mma, TiledMma) else TiledMma(mma)).view(name, size)
    threads, values, rest = view.shape
    t, v, r = np.indices((threads, values, int(np.prod(rest))))
    at = np.asarray(view.index(t, v, r), np.int64) + 0 * t
    held = (at % size[0], at // size[0], t, v + values * r)
    return Holders.of(size, held, value_labels(atom, name, (rest[0], rest[1])))


def value_labels(
    atom: MmaAtom, name: str, rest: tuple[int, int], say: Callable[[int, int], str] | None = None
) -> list[str]:
    """Value -> its register, and its instruction among `rest` (along the rows, along the columns).

    `say` names that instruction in other words.

    >>> from layoutgemm.atoms import mma_sync
    >>> value_labels(mma_sync((16, 8, 16)), "A", (1, 2))[13]
    '5 of instruction (0, 1): register 6, bits 16-31'
    """
    values, bits = int(atom.layout(name)[1].size), atom.dtype_of(name).bits
    each = atom.registers(name)
    labels = []
    for j in range(rest[1]):
        for i in range(rest[0]):
            number = i + rest[0] * j
            told = say(i, j) if say is not None else f"instruction ({i}, {j})"
            of = f" of {told}" if rest != (1, 1) or say is not None else ""
            for v in range(values):
                register, low = atom.slot(name, v)
                first = register + number * each
                where = f"registers {first} and {first + 1}" if bits > 32 else f"register {first}"
                if bits < 32:
                    where += f", bits {low}-{low + bits - 1}" if bits > 1 else f", bit {low}"
                labels.append(f"{v}{of}: {where}")
    return labels


def tmem_holders(atom: Tcgen05Atom, name: str, size: tuple[int, int]) -> Holders:
    """The tensor-memory lane and column of every element; instructions have columns of their own."""
    home = atom.accumulator if name in ("C", "D") else atom.operand_a
    one = atom.tile_of(name)
    rows, columns = one[0] // atom.cta_group, one[1]
    row, column = axes(size)
    each = size[0] // atom.cta_group
    block, inside = row // each, row % each
    rest = inside // rows + (each // rows) * (column // columns)
    place = home.layout(inside % rows, column % columns, 0 * row)
    lane, at = np.asarray(place[0]) + 0 * row, np.asarray(place[1]) + 0 * row
    found = rest * home.columns + at
    labels = [str(c) for c in range(int(found.max()) + 1)]
    return Holders.of(size, (row, column, lane + TMEM_LANES * block, found), labels)


def _descriptor_facts(tile: SmemTile, atom: MmaAtom, name: str, size: tuple[int, int]) -> tuple[Fact, ...]:
    try:
        derived = derive_descriptor(tile, atom, name)
    except DescriptorError as error:
        raise LayoutError(f"no descriptor hands this tile over: {error}") from error
    return descriptor_facts(derived, tile, name, size)


def descriptor_facts(derived: OperandDescriptor, tile: SmemTile, name: str, size: tuple[int, int]) -> tuple[Fact, ...]:
    """Which instruction's descriptor reaches an element. Its block along K and along M or N, and its word there."""
    row, column = axes(size)
    rows = tile.extent[0] // len(derived.mn_steps)
    depth = tile.extent[1] // len(derived.k_steps)
    mn_block, k_block = row % tile.extent[0] // rows, column // depth
    labels = []
    for k in range(len(derived.k_steps)):
        for mn in range(len(derived.mn_steps)):
            word = derived.at(0, k, mn).word
            which = f"block {k} along k" + (f", {mn} along {DIMS[name][0]}" if len(derived.mn_steps) > 1 else "")
            labels.append(f"{word:#018x}, of a tile at address 0: {which}, {derived.advance(k, mn) * 16} bytes on")
    return (Fact("read by the descriptor", mn_block + len(derived.mn_steps) * k_block, tuple(labels)),)


def _loaded(
    copy: CopyAtom | None, tile: SmemTile, atom: MmaAtom, name: str, size: tuple[int, int], tiled: bool
) -> tuple[Fact, ...]:
    """The facts of the ldmatrix that loads an operand: the one given, or the widest that does; else none."""
    if copy is not None:
        return copy_facts(copy, tile, atom, name, size, tiled)
    for count in (4, 2, 1):
        for transpose in (False, True):
            try:
                widest = ldmatrix(count, transpose=transpose, element=tile.dtype)
                return copy_facts(widest, tile, atom, name, size, tiled)
            except LayoutError:
                continue
    return ()


def copy_facts(
    copy: CopyAtom, tile: SmemTile, atom: MmaAtom, name: str, size: tuple[int, int], tiled: bool = False
) -> tuple[Fact, ...]:
    """The lane that gives ldmatrix the address of an element's row, and its instruction.

    The copy fills as many blocks of the operand as its registers hold; over a larger tile that repeats. Raises
    LayoutError where it does not feed the operand, with the counterexample.
    """
    one = atom.tile_of(name)
    why: list[str] = []
    for blocks in _BLOCKS:
        whole = (one[0] * blocks[0], one[1] * blocks[1])
        if size[0] % whole[0] or size[1] % whole[1] or (tiled and blocks[0] > 1):
            continue
        try:
            wanted = operand_map(copy, atom, name, blocks)
            proof = feeds(copy, tile, atom, name, blocks)
        except AtomError as error:
            why.append(str(error))
            continue
        if not proof:
            raise LayoutError(f"{copy} does not load {name} of {atom} from {tile}: {proof.explain()}")
        lanes, row = int(wanted[0][0].size), int(wanted[0][1].size)
        lane, j, instruction = np.indices((lanes, row, int(wanted[1].size)))
        element = np.asarray(wanted[0](lane, j) + wanted[1](instruction), np.int64)
        made = np.full((2, whole[0] * whole[1]), -1, np.int64)
        # of lanes that repeat a row's address the lowest one is read: PTX ISA, "ldmatrix"
        order = np.argsort(-lane.ravel(), kind="stable")
        made[0, element.ravel()[order]] = lane.ravel()[order]
        made[1, element.ravel()[order]] = instruction.ravel()[order]
        i, k = axes(size)
        inner = i % whole[0] + whole[0] * (k % whole[1])
        times = size[0] * size[1] // (whole[0] * whole[1])
        count = int(wanted[1][0].size)  # instructions of a warp; the second mode counts the warps
        number = made[1][inner] % count + count * (i // whole[0] + size[0] // whole[0] * (k // whole[1]))
        loads = tuple(f"load {load}: {copy.ptx}" for load in range(count * times))
        lane_words = tuple(f"lane {x}" for x in range(lanes))
        return Fact("row address from", made[0][inner], lane_words), Fact("loaded by", number, loads)
    raise LayoutError(f"{copy} does not load {name} of {atom}: {why[0] if why else f'{tile} is too small for it'}")


def _words(atom: MmaAtom, name: str, size: tuple[int, int], source: str) -> str:
    where = {"rmem": "registers", "smem": "shared memory", "tmem": "tensor memory"}[source]
    return f"{size[0]}x{size[1]} {atom.dtype_of(name)}, {where}"


def _heading(mma: MmaAtom | TiledMma, atom: MmaAtom) -> str:
    """The operands shown, the instruction, and the places that the page names."""
    operands = ("A, B", "C") if atom.scale is None else ("A, B, C, SFA", "SFB")
    places = "tensor-memory lanes and columns" if isinstance(atom, Tcgen05Atom) else "threads and registers"
    return f"{' and '.join(operands)} of {mma if isinstance(mma, TiledMma) else atom.ptx}: {places}"


def _how(atom: MmaAtom) -> tuple[str, ...]:
    shape = "x".join(map(str, atom.shape_mnk))
    held = f"{atom.threads} threads"
    if isinstance(atom, Tcgen05Atom):
        held = "a pair of CTAs" if atom.cta_group == 2 else "one CTA"
    product = f"{shape} by {held}. An element (m, n) of C is the product of row m of A and column n of B."
    if atom.scale is None:
        return (product,)
    scaled = f"A factor of SFA scales {atom.scale.vector} elements along k of its row of A, one of SFB as many of B."
    if isinstance(atom, Tcgen05Atom):
        return product, f"{scaled} Tensor memory keeps copies of each, for the lanes that multiply."
    return product, f"{scaled} Of the lanes that hold one the instruction's thread-id picks the one that counts."
