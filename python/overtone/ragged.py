"""Steps of a batch whose rows bring different numbers of query tokens, laid out for attention engines.

For talkers that step an engine of their own, and for executors: each step publishes, where the engine runs, which
tokens are whose, at which positions, of which KV state. ``docs/ragged-step.md`` walks through a talker's loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from overtone import _core
from overtone._core import Tensor
from overtone.arguments import refused, whole_number
from overtone.errors import FrameError
from overtone.frame import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overtone._typing import Executor, FrameCompletion, RaggedPlan, TensorLike

__all__ = ["Phase", "RaggedBatch", "RaggedConfig", "RaggedFault", "RaggedIo", "RaggedStep", "RaggedSteps"]


class Phase(IntEnum):
    """What a step is for; the number is what ``RaggedBatch.phase`` then holds."""

    PREFILL = 0
    """A prompt of up to ``query_width`` tokens a row. Its states are empty, unless ``RaggedConfig.chunked_prefill``."""
    DECODE = 1
    """One token a row: ``query_width`` is 1."""
    VERIFY = 2
    """A pending token and the drafts behind it, up to ``query_width`` tokens a row, all of which need logits."""


class RaggedFault(IntEnum):
    """Why a row was published as one without tokens: its ``status``, and as bit ``1 << fault`` part of ``faults``."""

    QUERY_LENGTH = 1
    """Its query length is negative, or more than ``query_width``."""
    STATE_INDEX = 2
    """There is no such KV state."""
    PAST_LENGTH = 3
    """Its past length is negative, or past and query together are more than ``max_positions``."""
    PAST_OF_PREFILL = 4
    """A prefill of a state that has a past already, where chunks are not allowed."""
    SHARED_STATE = 5
    """A row before it in the same step has the same state, and keeps it."""


_MOST_BOUND = 8
"""Pairs of ``RaggedIo`` and ``RaggedConfig`` that a batch remembers."""

_REASONS = {
    RaggedFault.QUERY_LENGTH: "its query length is negative, or more than query_width",
    RaggedFault.STATE_INDEX: "there is no such KV state",
    RaggedFault.PAST_LENGTH: "its past length is negative, or past and query together are more than max_positions",
    RaggedFault.PAST_OF_PREFILL: "a prefill of a state that has a past already, without chunked_prefill",
    RaggedFault.SHARED_STATE: "a row before it has the same KV state",
}


@dataclass(frozen=True)
class RaggedConfig:
    """What all steps of an engine have in common.

    Args:
        max_batch: The most rows of a step, 1 to 256.
        max_query_width: The most tokens that a row brings to a step.
        max_positions: Positions of a KV state: past and query together take no more.
        max_states: KV states that there are; None for one a row.
        layout: Where tokens lie. ``packed``: rows follow one another, and the padding of all of them comes last.
            ``padded``: token t of row b lies at b * query_width + t, and each row's padding behind its tokens.
        chunked_prefill: A prefill may go on where an earlier one ended, so that its rows may have a past.
        padding_position: Position that padding gets, any int32; its state index is -1.
        index_dtype: Type of ``positions`` and ``state_indices`` that :meth:`RaggedBatch.zeros` makes: ``int32`` or
            ``int64``.

    Raises:
        InputError: A size or a name is out of range; the message names it.

    >>> RaggedConfig(max_batch=4, max_query_width=8, max_positions=2048, layout="ragged")
    Traceback (most recent call last):
    overtone.errors.InputError: layout: found 'ragged', expected padded or packed
    """

    max_batch: int
    max_query_width: int
    max_positions: int
    max_states: int | None = None
    layout: str = "packed"
    chunked_prefill: bool = False
    padding_position: int = 0
    index_dtype: str = "int32"

    def __post_init__(self) -> None:
        _core.check_ragged_config(self)


@dataclass(frozen=True, eq=False)
class RaggedBatch:
    """Where steps are published: tensors of :meth:`zeros`, or an engine's own, contiguous and where the executor works.

    Rows of the batch are ``max_batch``, whatever a step has: entries of rows beyond the step's are those of a row
    without tokens. Of places in token order the step's are written, batch_size * query_width, all of them in either
    layout; those beyond are left alone. Each tensor may be longer than said.

    Args:
        query_offsets: [max_batch + 1] int32. Row b has the places query_offsets[b] to query_offsets[b] +
            query_lengths[b] in token order. The last entry, and that of every row beyond the step's, is where the rows
            end: the number of tokens when packed, batch_size * query_width when padded.
        query_lengths: [max_batch] int32: tokens that each row brings.
        past_lengths: [max_batch] int32: tokens that its KV state holds already; 0 for a row that brings none.
        total_lengths: [max_batch] int32: past and query together, what its queries may attend to.
        last_token_indices: [max_batch] int32: place of each row's last token, whose logits draw the next one; -1 for a
            row that brings none.
        positions: [max_batch * max_query_width] int32 or int64: position of each token, past length + t.
        state_indices: [max_batch * max_query_width] int32 or int64: KV state that each token belongs to; -1 is padding.
        phase: [1] int32: the step's :class:`Phase`.
        status: [max_batch] int32: 0, or the :class:`RaggedFault` of a row that was published as one without tokens.
        faults: [1] int32: bits of the faults of all steps since the engine last cleared it.
    """

    query_offsets: TensorLike
    query_lengths: TensorLike
    past_lengths: TensorLike
    total_lengths: TensorLike
    last_token_indices: TensorLike
    positions: TensorLike
    state_indices: TensorLike
    phase: TensorLike
    status: TensorLike
    faults: TensorLike
    _bound: list[tuple[Executor, RaggedIo, RaggedConfig, RaggedPlan]] = field(
        init=False, repr=False, default_factory=list
    )

    @classmethod
    def zeros(cls, config: RaggedConfig, device: str = "cpu") -> RaggedBatch:
        """New tensors for steps of ``config`` on a device such as ``cpu`` or ``cuda:0`` (``CodePredictor.device``).

        Raises:
            InputError: ``config`` or ``device`` is something else.
            CudaUnavailableError: A CUDA device was named, and there is none.
            OutOfMemoryError: The device has no memory for them.
        """
        if not isinstance(config, RaggedConfig):
            raise refused("config", config, "an overtone.RaggedConfig")
        if not isinstance(device, str):
            raise refused("device", device, "a device's name, such as 'cpu' or 'cuda:0'")
        rows = config.max_batch
        places = rows * config.max_query_width

        def vector(length: int, dtype: str = "int32") -> Tensor:
            return Tensor.zeros([length], dtype, device)

        return cls(
            query_offsets=vector(rows + 1),
            query_lengths=vector(rows),
            past_lengths=vector(rows),
            total_lengths=vector(rows),
            last_token_indices=vector(rows),
            positions=vector(places, config.index_dtype),
            state_indices=vector(places, config.index_dtype),
            phase=vector(1),
            status=vector(rows),
            faults=vector(1),
        )

    def _plan(self, executor: Executor, io: RaggedIo, config: RaggedConfig, stream: object) -> RaggedPlan:
        """The tensors as the executor knows them: imported when they first meet ``io`` and ``config``."""
        for known, lent, given, plan in self._bound:
            if known is executor and lent is io and given == config:
                return plan
        plan = executor.bind_ragged_steps(self, io, config, stream)
        self._bound[_MOST_BOUND - 1 :] = []
        self._bound.insert(0, (executor, io, config, plan))
        return plan


@dataclass(frozen=True, eq=False)
class RaggedIo:
    """What an engine lends to its steps, where the executor works; any strides.

    Args:
        state_indices: [max_batch] int32 or int64: KV state of each row. None: row b has state b. Two rows of a step
            cannot have one state.
        kv_lengths: [max_states] int32: tokens that each KV state holds. They are the past lengths of a step that is
            given none.
        advance: After a step is published, ``kv_lengths`` of each row that brought tokens becomes its total length.
            What a verify step rejects is for the engine to take back.
    """

    state_indices: TensorLike | None = None
    kv_lengths: TensorLike | None = None
    advance: bool = False


@dataclass(frozen=True, eq=False)
class RaggedStep:
    """A step that was published, or is about to be on its stream.

    Steps into one batch follow one another in the order of their stream; whoever gives them to several streams orders
    those, as with all work on tensors of their own.

    Args:
        batch: Where.
        batch_size: Rows of the step.
        completion: Tells when it is there.
    """

    batch: RaggedBatch
    batch_size: int
    completion: FrameCompletion = field(default=COMPLETE, repr=False)

    def ready(self) -> bool:
        """Whether it has been published; asks without waiting. On the CPU it always has.

        Raises:
            CaptureError: It was recorded into a graph, whose launches overtone does not see.
            DeviceError: The device failed.
        """
        return self.completion.ready()

    def wait(self) -> RaggedStep:
        """Wait until it is published, and check every row; where later steps went into the batch, those of the newest.

        An engine on the step's stream need not wait.

        Returns:
            The step itself.

        Raises:
            FrameError: Rows were published as rows without tokens; ``statuses`` holds the :class:`RaggedFault` of each.
            CaptureError: It was recorded into a graph, whose launches overtone does not see.
            DeviceError: The device failed.
        """
        self.completion.wait()
        statuses = Tensor.from_dlpack(self.batch.status).tolist()[: self.batch_size]
        failed = [row for row, status in enumerate(statuses) if status != 0]
        if failed:
            reasons = "; ".join(f"row {row}: {_REASONS[RaggedFault(statuses[row])]}" for row in failed)
            raise FrameError(reasons, failed, [statuses[row] for row in failed])
        return self


class RaggedSteps:
    """The part of :class:`~overtone.CodePredictor` that lays out steps; it uses no weights."""

    if TYPE_CHECKING:

        @property
        def _loaded(self) -> Executor: ...

    def prepare_ragged_step(
        self,
        batch: RaggedBatch,
        io: RaggedIo,
        config: RaggedConfig,
        query_lengths: TensorLike | Sequence[int],
        past_lengths: TensorLike | Sequence[int] | None,
        batch_size: int,
        query_width: int,
        phase: Phase | str,
        stream: object = None,
    ) -> RaggedStep:
        """Publish the token-major layout of one step: offsets, lengths, positions and state indices.

        On the cuda executor this is one small kernel on ``stream``, and nothing waits. The layout changes with every
        step, so each needs a call, or, inside a graph, a launch.

        A row of query length 0 takes no part; nothing else that it says is looked at. A row whose lengths or state
        cannot be published is published as one without tokens, and says why in ``status`` and ``faults``; the other
        rows go on. Lengths that come with the call are checked before anything is published, and raise instead.

        Args:
            batch: Where to publish.
            io: What the engine lends. Tensors of ``batch`` and ``io`` are imported and checked when these objects first
                meet; later steps read and write them in the order of their streams alone.
            config: What all steps have in common.
            query_lengths: Tokens of each row, 0 to ``query_width``: a sequence, or a tensor [batch_size] (or longer) of
                int32 or int64. One where the executor works is read when the step is published, one in host memory on
                the cuda executor comes with the call.
            past_lengths: Tokens that the state of each row holds, likewise; None takes ``io.kv_lengths``.
            batch_size: Rows of the step, 1 to ``config.max_batch``.
            query_width: Places of a row, 1 to ``config.max_query_width``; 1 in :attr:`Phase.DECODE`.
            phase: A :class:`Phase` or its name: ``prefill``, ``decode`` or ``verify``.
            stream: Where to order the work; see the class. Inside a capture the kernel is recorded, and replays read
                the lengths that are then on the device.

        Returns:
            The step; on the CPU it is published.

        Raises:
            InputError: An argument has the wrong shape, type, device or range, a length that comes with the call is out
                of range, or tensors overlap; nothing is published.
            CaptureError: The stream is under capture, and lengths come with the call.
            DeviceError: The device refused.

        >>> from overtone import CodePredictor
        >>> predictor = CodePredictor.from_pretrained("tests/data/omni-tiny", executor="cpu")
        >>> config = RaggedConfig(max_batch=2, max_query_width=3, max_positions=16)
        >>> batch = RaggedBatch.zeros(config, predictor.device)
        >>> step = predictor.prepare_ragged_step(batch, RaggedIo(), config, [3, 1], [0, 0], 2, 3, "prefill")
        >>> step.batch.query_offsets.tolist(), step.batch.positions.tolist()
        ([0, 3, 4], [0, 1, 2, 0, 0, 0])
        """
        for name, value, kind in (
            ("batch", batch, RaggedBatch),
            ("io", io, RaggedIo),
            ("config", config, RaggedConfig),
        ):
            if not isinstance(value, kind):
                raise refused(name, value, f"an overtone.{kind.__name__}")
        rows, width = whole_number("batch_size", batch_size), whole_number("query_width", query_width)
        name = phase.name.lower() if isinstance(phase, Phase) else phase
        plan = batch._plan(self._loaded, io, config, stream)  # noqa: SLF001 - both are of this module
        completion = plan.prepare(query_lengths, past_lengths, rows, width, name, stream)
        return RaggedStep(batch, rows, COMPLETE if completion is None else completion)
