"""Transformers, tensor by tensor in the order of their forward pass.

Sources: Devlin et al. 2019 (BERT), Radford et al. 2019 (GPT-2), Touvron et al. 2023 (Llama 2), Meta
2024 (Llama 3). A matrix's work is its elements, since every token goes through it; a table's that
of the one row which a token takes. What attention does among tokens is left out.
"""

from __future__ import annotations

from bench.steps.workloads.workload import Tensor


def _matrix(name: str, out: int, into: int) -> Tensor:
    return Tensor(name, (out, into), float(out * into))


def _vector(name: str, width: int) -> Tensor:
    return Tensor(name, (width,), float(width))


def _table(name: str, rows: int, width: int) -> Tensor:
    return Tensor(name, (rows, width), float(width))


def _linear(name: str, out: int, into: int) -> list[Tensor]:
    return [_matrix(f"{name}.weight", out, into), _vector(f"{name}.bias", out)]


def _norm(name: str, width: int) -> list[Tensor]:
    return [_vector(f"{name}.weight", width), _vector(f"{name}.bias", width)]


def bert_large() -> list[Tensor]:
    """391 tensors, 335,141,888 parameters: 24 layers of 1024, with the pooler."""
    d, vocabulary, positions = 1024, 30_522, 512
    found = [
        _table("embeddings.word", vocabulary, d),
        _table("embeddings.position", positions, d),
        _table("embeddings.type", 2, d),
        *_norm("embeddings.norm", d),
    ]
    for n in range(24):
        for name in ("query", "key", "value", "output"):
            found += _linear(f"layer{n}.{name}", d, d)
        found += _norm(f"layer{n}.norm1", d)
        found += _linear(f"layer{n}.up", 4 * d, d) + _linear(f"layer{n}.down", d, 4 * d)
        found += _norm(f"layer{n}.norm2", d)
    return [*found, *_linear("pooler", d, d)]


def gpt2() -> list[Tensor]:
    """148 tensors, 124,439,808 parameters: 12 layers of 768; the head shares the token table."""
    d, vocabulary, positions = 768, 50_257, 1024
    found = [_matrix("wte", vocabulary, d), _table("wpe", positions, d)]
    for n in range(12):
        found += _norm(f"h{n}.ln_1", d)
        found += _linear(f"h{n}.attn", 3 * d, d) + _linear(f"h{n}.proj", d, d)
        found += _norm(f"h{n}.ln_2", d)
        found += _linear(f"h{n}.fc", 4 * d, d) + _linear(f"h{n}.out", d, 4 * d)
    return [*found, *_norm("ln_f", d)]


def llama2_7b() -> list[Tensor]:
    """291 tensors, 6,738,415,616 parameters."""
    return _llama(vocabulary=32_000, heads=32, hidden=11_008)


def llama3_8b() -> list[Tensor]:
    """291 tensors, 8,030,261,248 parameters: keys and values have a quarter of the heads."""
    return _llama(vocabulary=128_256, heads=8, hidden=14_336)


def _llama(vocabulary: int, heads: int, hidden: int) -> list[Tensor]:
    """32 layers of 4096; ``heads`` of 128 for keys and for values."""
    d = 4096
    found = [_table("embed", vocabulary, d)]
    for n in range(32):
        found += [
            _vector(f"layer{n}.norm1", d),
            _matrix(f"layer{n}.q", d, d),
            _matrix(f"layer{n}.k", heads * 128, d),
            _matrix(f"layer{n}.v", heads * 128, d),
            _matrix(f"layer{n}.o", d, d),
            _vector(f"layer{n}.norm2", d),
            _matrix(f"layer{n}.gate", hidden, d),
            _matrix(f"layer{n}.up", hidden, d),
            _matrix(f"layer{n}.down", d, hidden),
        ]
    return [*found, _vector("norm", d), _matrix("head", vocabulary, d)]
