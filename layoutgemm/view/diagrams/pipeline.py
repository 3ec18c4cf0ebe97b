"""A pipeline of a kernel as a chart. Stages and barriers downwards, roles across, and who does what at which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from layoutgemm.arguments import checked
from layoutgemm.checks.pipeline.actions import (
    Action,
    Arrive,
    ArriveExpect,
    CommitTo,
    CpAsync,
    CpAsyncArrive,
    Expect,
    ForK,
    ForTiles,
    If,
    Mma,
    Program,
    Read,
    StoreAsync,
    Sync,
    TmaLoad,
    TmaStore,
    Wait,
    Write,
)
from layoutgemm.checks.pipeline.model import Buffer, Mbarrier, NamedBarrier, Pipeline, Role, ranks_of
from layoutgemm.checks.pipeline.table import barriers_of, fillers_of, readers_of, work_of
from layoutgemm.layouts.display import picture, table
from layoutgemm.view.canvas import Canvas, width_of
from layoutgemm.view.palette import FAINT, INK, hue, lighter
from layoutgemm.view.sheet import MARGIN, NOTE_SIZE, Note, header

from ...atoms.copy.base import WARP

CHIP, GAP, CELL = 18.0, 4.0, 20.0  # heights of an action and of a stage, and the room between two, in pixels
TEXT = 11.0
PALE = 0.6  # how much lighter an action is that only reads or waits
MOST_STAGES = 16  # drawn one by one
HEAD = 44.0  # pixels of the roles' names
SPACES = {"smem": "shared memory", "tmem": "tensor memory", "warp": "shared memory of a warp"}
Resource = Buffer | Mbarrier | NamedBarrier


@dataclass(frozen=True, slots=True)
class RoleAction:
    """One kind of use of a buffer or barrier by a role.

    number   place in the role's program: one action that uses two of them has one number
    place    name of the buffer or barrier
    does     the action in a word or two
    changes  whether it fills or arrives; else it reads or waits
    every_k  whether it is in the loop over k tiles
    """

    number: int
    place: str
    does: str
    changes: bool
    every_k: bool


@checked()
def pipeline_svg(pipeline: Pipeline, *, title: str | None = None) -> str:
    """Draws a pipeline. A row for each buffer and barrier with its stages, a column for each role with its actions.

    Squares are stages of buffers, circles those of barriers. Numbers give the order in a role's program. Actions that
    fill a buffer or arrive at a barrier are dark, those that read or wait pale, those of every k tile outlined. Under a
    barrier's name stand the arrivals and bytes that complete a phase, in the CTA of rank 0.

    >>> from layoutgemm.checks import ring
    >>> svg = pipeline_svg(ring(stages=4, bytes=32768, consumers=2))
    >>> "completes: 1 arrival, 32768 bytes" in svg, svg.count('data-stage="3"')    # of ab, full and empty
    (True, 3)
    >>> ">2. wait</text>" in svg, ">4. TMA load</text>" in svg    # after 1, the barrier of all threads
    (True, True)
    """
    steps = [steps_of(pipeline, role) for role in pipeline.roles]
    rows = resources_of(pipeline)
    tops = [max([sum(step.place == row.name for step in each) for each in steps]) for row in rows]
    heights = [max(2 * CELL, most * (CHIP + GAP)) + 2 * GAP for most in tops]
    stages = min(max([count_of(row) for row in rows]), MOST_STAGES)
    names = max(width_of(text, TEXT) for row in rows for text in words_of(row)) + 14
    left = MARGIN + names + stages * CELL + 24
    widths = [column_width(role, each) for role, each in zip(pipeline.roles, steps, strict=True)]
    heading = title or str(pipeline).split(":")[0]
    inner = max(left - MARGIN + sum(widths), width_of(heading, 16) * 1.15)
    notes = notes_of(pipeline)
    canvas = Canvas()
    top = header(canvas, heading, notes, inner) + 20
    at = [left + sum(widths[:column]) for column in range(len(widths))]
    bottom = top + HEAD + sum(heights)
    for column, role in enumerate(pipeline.roles):
        draw_role(canvas, role, at[column], widths[column], top, bottom, hue(column))
    y = top + HEAD
    for row, height in zip(rows, heights, strict=True):
        canvas.lines([(MARGIN, y, MARGIN + inner, y)], "line", 0.5)
        draw_resource(canvas, row, MARGIN + names, y, height)
        for column, each in enumerate(steps):
            here = [step for step in each if step.place == row.name]
            draw_steps(canvas, here, pipeline.roles[column].name, at[column], widths[column], y, height, hue(column))
        y += height
    return canvas.render(inner + 2 * MARGIN, y + MARGIN, heading, [note.text for note in notes])


def notes_of(pipeline: Pipeline) -> list[Note]:
    """The lines under the title."""
    warps = sum(role.warps for role in pipeline.roles)
    cluster = f", in each of the {pipeline.cluster} CTAs of a cluster" if pipeline.cluster > 1 else ""
    return [
        Note(f"{warps} warps in {len(pipeline.roles)} roles{cluster}. Squares are stages of buffers, circles those of "
             "barriers."),
        Note("Numbers: the order in a role's program. Dark: fills or arrives; pale: reads or waits; outlined: at every "
             "k tile."),
    ]  # fmt: skip


def resources_of(pipeline: Pipeline) -> list[Resource]:
    """Buffers with the mbarriers that guard them, then the other barriers; registers are left out."""
    found: list[Resource] = []
    for buffer in pipeline.buffers:
        if buffer.space == "reg":
            continue
        found.append(buffer)
        fillers, readers = fillers_of(pipeline, buffer.name)[1], readers_of(pipeline, buffer.name)
        guards = [pipeline.mbarrier(name) for name in barriers_of(pipeline, buffer.name, fillers, readers)]
        found += [guard for guard in guards if guard not in found]
    return found + [barrier for barrier in pipeline.barriers if barrier not in found]


def steps_of(pipeline: Pipeline, role: Role) -> list[RoleAction]:
    """The kinds of uses of buffers and barriers by a role, in program order.

    >>> from layoutgemm.checks import ring
    >>> two = ring(stages=2, bytes=16384)
    >>> [(step.number, step.place, step.does) for step in steps_of(two, two.roles[0])][1:]
    [(2, 'empty', 'wait'), (3, 'full', 'expect 16384 bytes'), (4, 'ab', 'TMA load'), (4, 'full', '16384 bytes land')]
    """
    found: dict[tuple[str, str], RoleAction] = {}
    number = 0
    for action, every_k in flat(role.program, False):
        new = [use for use in uses_of(pipeline, role, action) if use[:2] not in found]
        number += bool(new)
        for place, does, changes in uses_of(pipeline, role, action):
            step = found.setdefault((place, does), RoleAction(number, place, does, changes, every_k))
            if every_k and not step.every_k:  # in a prologue too
                found[place, does] = replace(step, every_k=True)
    return list(found.values())


def flat(program: Program, in_k: bool) -> Iterator[tuple[Action, bool]]:
    """Every action in order, and whether it is in a loop over k tiles."""
    for action in program:
        if isinstance(action, (ForK, ForTiles)):
            yield from flat(action.body, in_k or isinstance(action, ForK))
        elif isinstance(action, If):
            yield from flat(action.then, in_k)
            yield from flat(action.orelse, in_k)
        else:
            yield action, in_k


def uses_of(pipeline: Pipeline, role: Role, action: Action) -> list[tuple[str, str, bool]]:
    """(buffer or barrier, what the action does there, whether it fills it or arrives)."""
    drawn = {buffer.name for buffer in pipeline.buffers if buffer.space != "reg"}
    found: list[tuple[str, str, bool]] = []
    size = pipeline.cluster
    if isinstance(action, TmaLoad):
        multicast = any(len(ranks_of(action.to, rank, size)) > 1 for rank in range(size))
        found.append((action.buffer, "TMA multicast" if multicast else "TMA load", True))
        bytes_ = pipeline.mbarrier(action.barrier).bytes if action.bytes is None else action.bytes
        found.append((action.barrier, f"{bytes_} bytes land", True))
    elif isinstance(action, StoreAsync):
        found.append((action.buffer, "st.async", True))
        found.append((action.barrier, f"{role.warps * action.bytes} bytes land", True))
    elif isinstance(action, CpAsync):
        found.append((action.buffer, "cp.async", True))
    elif isinstance(action, CpAsyncArrive):
        found.append((action.barrier, f"arrive: {arrivals(role, 'lanes')}, landed", True))
    elif isinstance(action, Write):
        found.append((action.buffer, "write", True))
    elif isinstance(action, (Read, TmaStore)):
        found.append((action.buffer, "read" if isinstance(action, Read) else "TMA store", False))
    elif isinstance(action, Mma):
        found += [(name, f"{action.pipe} reads", False) for name in action.reads]
        found.append((action.into, f"{action.pipe} adds", True))
    elif isinstance(action, Wait):
        found.append((action.barrier, "wait", False))
    elif isinstance(action, Arrive):
        to = "" if action.to == "own" else " in the cluster" if action.to == "all" else " in other CTAs"
        found.append((action.barrier, f"arrive: {arrivals(role, action.by)}{to}", True))
    elif isinstance(action, CommitTo):
        found.append((action.barrier, "tcgen05.commit", True))
    elif isinstance(action, (ArriveExpect, Expect)):
        bytes_ = pipeline.mbarrier(action.barrier).bytes if action.bytes is None else action.bytes
        found.append((action.barrier, f"expect {bytes_} bytes", True))
    elif isinstance(action, Sync):
        found.append((action.barrier, "sync" if action.wait else "arrive", not action.wait))
    return [use for use in found if use[0] in drawn or use[0] not in {buffer.name for buffer in pipeline.buffers}]


def arrivals(role: Role, by: str) -> str:
    """The arrivals of one action of a role, in words."""
    if by == "one":
        return "1 thread"
    return f"{WARP * role.warps} lanes" if by == "lanes" else f"{role.warps} warp{'s' * (role.warps > 1)}"


def count_of(row: Resource) -> int:
    """The stages of a buffer or barrier."""
    return 1 if isinstance(row, NamedBarrier) else row.stages


def words_of(row: Resource) -> tuple[str, str]:
    """Name, and a line on it."""
    if isinstance(row, Buffer):
        return row.name, SPACES.get(row.space, row.space)
    if isinstance(row, NamedBarrier):
        return row.name, f"completes: {row.threads} threads"
    count = row.count_of(0)
    bytes_ = f", {row.bytes} bytes" if row.bytes else ""
    return row.name, f"completes: {count} arrival{'s' * (count != 1)}{bytes_}"


def column_width(role: Role, steps: Sequence[RoleAction]) -> float:
    """Room for a role's column."""
    texts = [f"{step.number}. {step.does}" for step in steps]
    return max(width_of(text, TEXT) for text in [*texts, f"{role.name} ", role_words(role)]) + 2 * GAP + 16


def role_words(role: Role) -> str:
    """Warps, work and registers of a role."""
    registers = f", {role.registers} registers" if role.registers is not None else ""
    return f"{role.warps} warp{'s' * (role.warps > 1)}, {work_of(role)}{registers}"


def draw_role(canvas: Canvas, role: Role, x: float, width: float, top: float, bottom: float, fill: str) -> None:
    """A role's name on its colour, and the line that its actions are on."""
    middle = x + width / 2
    canvas.lines([(middle, top + HEAD - 8, middle, bottom)], fill, 2)
    canvas.box(x + GAP, top, width - 2 * GAP, HEAD - 8, fill, f"{role.name}: {role_words(role)}", data='data-role=""')
    canvas.text(middle, top + 15, role.name, TEXT + 1, fill=INK, anchor="middle", bold=True)
    canvas.text(middle, top + 30, role_words(role), TEXT, fill=INK, anchor="middle")


def draw_resource(canvas: Canvas, row: Resource, x: float, y: float, height: float) -> None:
    """A buffer's or a barrier's name, and its stages from x on."""
    name, words = words_of(row)
    middle = y + height / 2
    canvas.text(MARGIN, middle - 3, name, NOTE_SIZE, bold=True)
    canvas.text(MARGIN, middle + 12, words, TEXT, fill="faint")
    stages = count_of(row)
    for stage in range(min(stages, MOST_STAGES)):
        left = x + stage * CELL
        more = stage == MOST_STAGES - 1 and stages > MOST_STAGES
        data, told = f'data-stage="{stage}"', f"{name}, stage {stage} of {stages}"
        if isinstance(row, Buffer):
            canvas.box(left, middle - CELL / 2, CELL, CELL, "empty", told, stroke=FAINT, data=data)
        else:
            canvas.open(data)
            canvas.circle(left + CELL / 2, middle, CELL / 2 - 1, "empty", FAINT, 1)
            canvas.close()
        text = "..." if more else "" if isinstance(row, NamedBarrier) else str(stage)
        canvas.text(left + CELL / 2, middle + 0.36 * TEXT, text, TEXT, fill=INK, anchor="middle", mono=True)


def draw_steps(
    canvas: Canvas, steps: Sequence[RoleAction], role: str, x: float, width: float, y: float, height: float, fill: str
) -> None:
    """A role's actions at one buffer or barrier, in the middle of its row."""
    top = y + (height - len(steps) * (CHIP + GAP) + GAP) / 2
    for place, step in enumerate(steps):
        at = top + place * (CHIP + GAP)
        when = "every k tile" if step.every_k else "outside of the k loop"
        told = f"{role}, {step.number}: {step.does}, {step.place}, {when}"
        color = fill if step.changes else lighter(fill, PALE)
        canvas.box(x + GAP, at, width - 2 * GAP, CHIP, color, told)
        canvas.open('pointer-events="none"')  # the box below has the title
        if step.every_k:  # inside: ink is seen on the colour, not on a dark page
            canvas.frame(x + GAP + 2, at + 2, width - 2 * GAP - 4, CHIP - 4, 1)
        text = f"{step.number}. {step.does}"
        canvas.text(x + width / 2, at + CHIP / 2 + 0.36 * TEXT, text, TEXT, fill=INK, anchor="middle")
        canvas.close()


def pipeline_table(pipeline: Pipeline) -> str:
    """The pipeline's table of roles and barriers."""
    return pipeline.explain()


picture.register(Pipeline)(pipeline_svg)
table.register(Pipeline)(pipeline_table)
