"""Tensors of the models that are exchanged, and how each system groups them. PURE.

The lists are made from the models' published sizes, so that a clean clone has them; they are those of torchvision's
AlexNet and of BERT-base as transformers has it, whose lists are in `shared/data/autops`.
"""

from collections.abc import Sequence

FLOAT_BYTES = 4
MIB = 1 << 20
CHUNK_BYTES, JOINED_BYTES = 256 << 10, 64 << 10
DDP_FIRST_BYTES, DDP_BUCKET_BYTES = MIB, 25 * MIB

Piece = tuple[int, int, int]
"""A tensor's number, the first of its elements, and how many of them."""


def bert_base() -> tuple[int, ...]:
    """Elements of the 199 tensors of BERT-base: 30,522 words, 12 layers of 768, 3,072 between them."""
    width, between, layers = 768, 3072, 12
    projection = (width * width, width)
    norm = (width, width)
    layer = (*projection * 4, *norm, width * between, between, between * width, width, *norm)
    return (30522 * width, 512 * width, 2 * width, *norm, *layer * layers, *projection)


def alexnet() -> tuple[int, ...]:
    """Elements of the 16 tensors of AlexNet, weight and bias of each layer."""
    convolutions = ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))
    linear = ((9216, 4096), (4096, 4096), (4096, 1000))
    found: list[int] = []
    for before, after, side in convolutions:
        found += [before * after * side * side, after]
    for before, after in linear:
        found += [before * after, after]
    return tuple(found)


def ddp_buckets(counts: Sequence[int]) -> list[list[int]]:
    """Tensors of each bucket, as DistributedDataParallel makes them: in reverse, the first one small.

    A bucket is closed by the tensor that makes it reach its size.
    """
    buckets: list[list[int]] = [[]]
    size_bytes, most_bytes = 0, DDP_FIRST_BYTES
    for tensor in reversed(range(len(counts))):
        buckets[-1].append(tensor)
        size_bytes += counts[tensor] * FLOAT_BYTES
        if size_bytes >= most_bytes and tensor:
            buckets.append([])
            size_bytes, most_bytes = 0, DDP_BUCKET_BYTES
    return buckets


def chunks_of(counts: Sequence[int]) -> list[list[Piece]]:
    """Chunks of 256 KiB, a tensor's last one shorter; tensors below 64 KiB are joined until they make that much.

    A joined chunk has the place of its first tensor: gradients come in reverse, so it is whole when its turn comes.
    """
    chunks: list[list[Piece]] = []
    joined: list[Piece] | None = None
    for tensor, count in enumerate(counts):
        if count * FLOAT_BYTES >= JOINED_BYTES:
            most = CHUNK_BYTES // FLOAT_BYTES
            chunks += [[(tensor, at, min(most, count - at))] for at in range(0, count, most)]
            continue
        if joined is None:
            joined = []
            chunks.append(joined)
        joined.append((tensor, 0, count))
        if sum(piece[2] for piece in joined) * FLOAT_BYTES >= JOINED_BYTES:
            joined = None
    return chunks
