"""One frame: what goes in (:class:`FramePlan`), what comes out (:class:`Frame`), one prepared (:class:`BoundFrame`).

A frame is prepared to be launched many times; :class:`HostFrame` is what came out, as NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from overtone.errors import FrameError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from overtone._core import Tensor
    from overtone._typing import FrameCompletion, Prepared, Sampling, TensorLike
    from overtone.codes_ring import CodesRing

__all__ = ["BoundFrame", "Frame", "FramePlan", "HostFrame"]


@dataclass(frozen=True, eq=False)
class FramePlan:
    """Inputs of one frame.

    Args:
        active_batch_size: B, how many rows of the tensors below take part, from row 0; at most ``max_batch``.
        code_zero: The talker's ``code_0`` of every row: [B] int32 or int64 (more rows are ignored), or a sequence of
            integers. One outside the talker's table fails its row alone (status -1).
        talker_last_hidden: The talker's last hidden state after its final norm, [B, Ht] float32, float16 or bfloat16,
            any strides (more rows are ignored).
        sampling: One for all rows, a sequence of B, :class:`SamplingArrays`, or None for greedy.
        frame_idx: Index of the frame, part of the noise's counter: one integer, or a tensor [1] or [B] of int64 or
            uint64 that is read when the frame runs. A sampled frame needs it; -1 means unset.
        active: [B] bool or integers: rows whose entry is 0 are left out; of their outputs only the status is written.
        advance_frame_idx: Add one to the frame index after each launch. In a tensor [1] it counts launches; in a
            tensor [B] the entries of rows that took part are advanced.
        codes_ring: Collects the codes of many frames (:meth:`CodePredictor.codes_ring`); then there is no
            ``output_codes``, and ``Frame.codes`` is the ring's tensor.

    On the cuda executor ``talker_last_hidden`` is on the device. All else may be there too, and is then read when the
    frame's turn comes on its stream, or in host memory, and is then read when the frame is launched. Inside a capture
    only what is on the device can change from replay to replay, so a host's ``code_zero``, ``active``, sampling other
    than greedy, and with that ``frame_idx``, raise :class:`~overtone.errors.CaptureError`.
    """

    active_batch_size: int
    code_zero: TensorLike | Sequence[int]
    talker_last_hidden: TensorLike
    sampling: Sampling = None
    frame_idx: int | TensorLike = -1
    active: TensorLike | None = None
    advance_frame_idx: bool = False
    codes_ring: CodesRing | None = None


class HostFrame(NamedTuple):
    """A frame's outputs as NumPy arrays; see :class:`Frame` for their meaning. bfloat16 comes as float32."""

    codes: NDArray[np.int32]
    codec_sum: NDArray[Any]
    codec_hiddens: NDArray[Any]
    status: NDArray[np.int32]
    logits: NDArray[np.float32] | None


class _Complete:
    """The completion of a frame that had run when its call returned."""

    def ready(self) -> bool:
        return True

    def wait(self) -> None:
        pass


COMPLETE = _Complete()
"""Of work that was done when its call returned."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Outputs of one frame: tensors that export DLPack and, on the CPU, NumPy arrays.

    On the cuda executor the frame may still be under way. Whoever takes a tensor through a protocol is ordered after
    it: ``torch.from_dlpack(frame.codes)`` on torch's current stream, without a wait of the host;
    ``frame.codes.numpy()`` waits. Tensors of :meth:`CodePredictor.predict_frame` keep their memory for as long as they,
    or what was made of them, live. As in torch's own allocator it is then reused in the order of the stream that the
    frame ran on; let go of tensors that another stream still reads only when it is done.

    Args:
        codes: [B, C] int32 (or the type of the caller's own tensor), ``code_0`` first.
        codec_sum: [B, Ht] in the hidden rows' type: E0[c0] + Σ E[k-1][code_k], summed in float32, rounded once.
        codec_hiddens: [B, C, Ht] in the tables' type: row k (1 ≤ k < R) is E[k-1][code_k]. Rows 0 and R are the
            talker's and are never written.
        status: [B] int32: 0 good, or left out of the frame; j > 0 the first codebook whose draw failed; -1 ``code_0``
            out of range.
        logits: [B, R, V] float32 when asked for, else None.
        completion: Tells when they are there; where frames reuse their outputs, those of the newest.
    """

    codes: Tensor
    codec_sum: Tensor
    codec_hiddens: Tensor
    status: Tensor
    logits: Tensor | None = None
    completion: FrameCompletion = field(default=COMPLETE, repr=False)

    def ready(self) -> bool:
        """Whether the frame has completed; asks without waiting. On the CPU it always has.

        Raises:
            CaptureError: The frame was recorded into a graph, whose launches overtone does not see.
            DeviceError: The device failed.
        """
        return self.completion.ready()

    def wait(self) -> Frame:
        """Wait for the frame, and check every row.

        Returns:
            The frame itself.

        Raises:
            FrameError: Rows failed; ``rows`` and ``statuses`` tell which and how.
            CaptureError: The frame was recorded into a graph, whose launches overtone does not see.
            DeviceError: The device failed.
        """
        self.completion.wait()
        statuses = self.status.tolist()
        failed = [row for row, status in enumerate(statuses) if status != 0]
        if failed:
            reasons = "; ".join(f"row {row}: {_reason(statuses[row])}" for row in failed)
            raise FrameError(reasons, failed, [statuses[row] for row in failed])
        return self

    def to_host(self) -> HostFrame:
        """Wait for the frame, check every row, and return NumPy arrays.

        Raises:
            FrameError: Rows failed; ``rows`` and ``statuses`` tell which and how.
            CaptureError: As for :meth:`wait`.
            DeviceError: As for :meth:`wait`.
        """
        self.wait()
        logits = None if self.logits is None else self.logits.numpy()
        return HostFrame(
            self.codes.numpy(), self.codec_sum.numpy(), self.codec_hiddens.numpy(), self.status.numpy(), logits
        )


def _reason(status: int) -> str:
    if status < 0:
        return "code_0 is outside the talker's codec table"
    return f"codebook {status} could not be drawn: its logits are not finite, or overflow when divided by temperature"


class BoundFrame:
    """A frame whose tensors were imported and checked once: ``launch`` looks at none of them again.

    Outputs stay the same tensors from launch to launch; inputs are read anew each time.
    """

    __slots__ = ("_launch", "frame")

    def __init__(self, prepared: Prepared) -> None:
        self._launch = prepared.launch
        self.frame = Frame(*prepared.outputs())

    def launch(self, stream: object = None) -> Frame:
        """Run the frame with what its tensors hold now.

        Args:
            stream: Where to order the work: an integer handle, anything with ``__cuda_stream__`` or ``cuda_stream``, or
                None for torch's current stream. The CPU executor runs before it returns and needs none.

        Returns:
            The bound outputs.

        Raises:
            InputError: A value read from a parameter tensor on the host is out of range.
            CaptureError: The stream is under capture, and a value on the host would be repeated by every replay.
            DeviceError: The device refused, or the predictor was made before this process was forked.
        """
        self._launch(stream)
        return self.frame
