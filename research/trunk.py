"""The first layers of a model, which a run does not train. Their output for the same beginning of a text never changes, so it is computed
once and kept; sampling and update then run only the other layers, with the whole model's results (research/tests/test_trunk.py).

For models whose layers are those of Llama or Qwen2. P prompts or packs of rows behind one, T tokens of the longest prompt, B beginnings
of responses, D places of a pack, H hidden size, N response tokens, U different places that predict one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from research.predictions import Predictions

MOST_KEPT = 20_000  # tokens of prompts; each takes some 40 kB of a model of 135M parameters
INVISIBLE = torch.finfo(torch.float32).min

Said = tuple[int, ...]  # the first tokens of a response


class _Prompt(NamedTuple):
    """The output of the first layers for a prompt."""

    hidden_TH: Tensor
    keys: list[Tensor]  # [heads, T, head size] of each layer
    values: list[Tensor]


class Kept(NamedTuple):
    """The work of the first layers."""

    prompts: dict[bytes, _Prompt]  # by their token ids
    # hidden state [H] of the last token of a beginning behind a prompt
    said: dict[tuple[bytes, Said], Tensor]


_KEPT: dict[tuple[str, int], Kept] = {}


def kept_of(model_dir: str, num_layers: int) -> Kept:
    """One for all runs of this process that begin with the same model and train the same layers."""
    return _KEPT.setdefault((model_dir, num_layers), Kept({}, {}))


def num_frozen_layers(model) -> int:
    """Count the frozen layers, from the first one on; 0 if the embeddings are trained."""
    if any(parameter.requires_grad for parameter in model.get_input_embeddings().parameters()):
        return 0
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    found = [re.match(r"model\.layers\.(\d+)\.", name) for name in trained]
    return min((int(each[1]) for each in found if each), default=len(model.model.layers))


class Trunk:
    """The frozen first layers of a model, and the passes through the others."""

    def __init__(self, model, num_layers: int, *, kept: Kept | None = None) -> None:
        """kept: of another run of this process that began with the same model."""
        self.model = model
        self._first, self._others = (
            model.model.layers[:num_layers],
            model.model.layers[num_layers:],
        )
        self._prompts, self._said = kept or Kept({}, {})

    def _run(
        self,
        layers,
        hidden: Tensor,
        position: Tensor,
        visible: Tensor,
        cache: DynamicCache | None = None,
    ) -> Tensor:
        """visible: bool [rows, places, places that they may see]."""
        mask = torch.zeros(visible.shape).masked_fill(~visible, INVISIBLE)[:, None]
        rope = self.model.model.rotary_emb(hidden, position_ids=position)
        for layer in layers:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=position,
                position_embeddings=rope,
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.lm_head(self.model.model.norm(hidden)).float()

    # ── the first layers ──

    @torch.no_grad()
    def _read(self, prompts: Sequence[np.ndarray]) -> list[bytes]:
        """The keys under which these prompts are known from now on."""
        keys = [np.asarray(prompt, np.int32).tobytes() for prompt in prompts]
        by_length: dict[int, list[bytes]] = {}
        if sum(map(len, {*keys, *self._prompts})) > 4 * MOST_KEPT:  # four bytes a token
            self._prompts.clear()
            self._said.clear()
        for key in dict.fromkeys(keys):
            if key not in self._prompts:
                by_length.setdefault(len(key) // 4, []).append(key)
        for length, alike in by_length.items():
            ids_PT = torch.tensor(
                np.stack([np.frombuffer(key, np.int32) for key in alike]), dtype=torch.long
            )
            visible = torch.ones(len(alike), length, length, dtype=torch.bool).tril()
            cache = DynamicCache()
            hidden = self._run(
                self._first,
                self.model.model.embed_tokens(ids_PT),
                torch.arange(length)[None].expand(len(alike), -1),
                visible,
                cache,
            )
            for row, key in enumerate(alike):
                keys_and_values = (
                    [each[row].clone() for each in kind]
                    for kind in zip(*[(k, v) for k, v, _ in cache], strict=True)
                )
                self._prompts[key] = _Prompt(hidden[row].clone(), *keys_and_values)
        return keys

    @torch.no_grad()
    def _hidden_after(self, beginnings: Sequence[tuple[bytes, Said]]) -> Tensor:
        """[B, H] of the last tokens of these beginnings of responses behind prompts that have been read."""
        new: dict[int, list[tuple[bytes, Said]]] = {}
        for key in dict.fromkeys(beginnings):
            if key not in self._said:
                new.setdefault(len(key[1]), []).append(key)
        for length, alike in new.items():
            prompts = [self._prompts[prompt] for prompt, _ in alike]
            sizes = torch.tensor([len(prompt.hidden_TH) for prompt in prompts])
            longest = int(sizes.max())
            cache = DynamicCache()
            for layer in range(len(self._first)):
                cache.update(
                    *(
                        torch.stack(
                            [
                                pad(kind[layer], (0, 0, longest - kind[layer].shape[1], 0))
                                for kind in kinds
                            ]
                        )
                        for kinds in (
                            [one.keys for one in prompts],
                            [one.values for one in prompts],
                        )
                    ),
                    layer,
                )
            in_prompt = (torch.arange(longest) >= longest - sizes[:, None])[:, None].expand(
                -1, length, -1
            )
            visible = torch.cat(
                [in_prompt, torch.ones(len(alike), length, length, dtype=torch.bool).tril()], 2
            )
            embedded = self.model.model.embed_tokens(torch.tensor([said for _, said in alike]))
            hidden = self._run(
                self._first, embedded, sizes[:, None] + torch.arange(length), visible, cache
            )
            self._said.update(zip(alike, hidden[:, -1].clone(), strict=True))
        return torch.stack([self._said[key] for key in beginnings])

    # ── all of them ──

    def decoder(self, ids_PT: Tensor, mask_PT: Tensor) -> Decoder:
        """Begin to decode, as in research.sampling."""
        return Decoder(
            self, [ids[mask.bool()].numpy() for ids, mask in zip(ids_PT, mask_PT, strict=True)]
        )

    def predictions(
        self, packs: Sequence[tuple[np.ndarray, Sequence[np.ndarray]]], *, temperature: float
    ) -> Predictions:
        """Of the response tokens of (prompt, responses), pack by pack; with gradients.

        A beginning that several responses share is one place, and what predicts nothing is none."""
        keys = self._read([prompt for prompt, _ in packs])
        # for each pack: beginning of a response -> place of its last token
        places: list[dict[Said, int]] = []
        predicts: list[tuple[int, int]] = []  # for each response token: (pack, place)
        for p, (prompt, responses) in enumerate(packs):
            places.append({(): len(prompt) - 1})
            for response in map(tuple, (response.tolist() for response in responses)):
                for said in (response[:end] for end in range(len(response))):
                    predicts.append(
                        (p, places[p].setdefault(said, len(prompt) + len(places[p]) - 1))
                    )
        ends = [
            (key, each)
            for key, of_pack in zip(keys, places, strict=True)
            for each in of_pack
            if each
        ]
        later = list(self._hidden_after(ends)) if ends else []
        rows, starts = [], np.cumsum([0, *(len(of_pack) - 1 for of_pack in places)])
        for key, start, end in zip(keys, starts[:-1], starts[1:], strict=True):
            rows.append(
                torch.cat(
                    [self._prompts[key].hidden_TH, *(each[None] for each in later[start:end])]
                )
            )
        hidden_PDH = pad_sequence(rows, batch_first=True)
        position_PD = torch.zeros(hidden_PDH.shape[:2], dtype=torch.long)
        visible_PDD = torch.zeros(*hidden_PDH.shape[:2], hidden_PDH.shape[1], dtype=torch.bool)
        for p, (prompt, _) in enumerate(packs):
            position_PD[p, : len(prompt)] = torch.arange(len(prompt))
            visible_PDD[p, : len(prompt), : len(prompt)] = torch.ones(
                len(prompt), len(prompt), dtype=torch.bool
            ).tril()
            for beginning, place in places[p].items():
                if beginning:
                    visible_PDD[p, place] = visible_PDD[p, places[p][beginning[:-1]]]
                    visible_PDD[p, place, place] = True
                    position_PD[p, place] = len(prompt) + len(beginning) - 1
        hidden_PDH = self._run(self._others, hidden_PDH, position_PD, visible_PDD)
        pack_U, place_U = torch.tensor(list(dict.fromkeys(predicts))).T
        number = {each: u for u, each in enumerate(dict.fromkeys(predicts))}
        logp_UV = (self._logits(hidden_PDH[pack_U, place_U]) / temperature).log_softmax(-1)
        tokens = np.concatenate([response for _, responses in packs for response in responses])
        return Predictions(
            logp_UV,
            torch.from_numpy(tokens.astype(np.int64)),
            torch.tensor([number[each] for each in predicts]),
        )


class Decoder:
    """One token more for every row: what the trunk knows, and a cache of the other layers' own."""

    def __init__(self, trunk: Trunk, prompts: Sequence[np.ndarray]) -> None:
        self._trunk, self._cache = trunk, DynamicCache()
        self._prompt_R = trunk._read(prompts)
        self._said_R: list[Said] = [()] * len(prompts)
        known = [trunk._prompts[key].hidden_TH for key in self._prompt_R]
        self._position_R = torch.tensor([len(each) for each in known])
        longest = int(self._position_R.max())
        hidden_PTH = torch.stack([pad(each, (0, 0, longest - len(each), 0)) for each in known])
        self._mask_RT = torch.arange(longest) >= longest - self._position_R[:, None]
        visible = self._mask_RT[:, None] & torch.ones(longest, longest, dtype=torch.bool).tril()
        position = (self._mask_RT.long().cumsum(1) - 1).clamp(min=0)
        hidden_PTH = trunk._run(trunk._others, hidden_PTH, position, visible, self._cache)
        self.first_logits_PV = trunk._logits(hidden_PTH[:, -1])

    def advance(self, after_R: Tensor, token_R: Tensor) -> Tensor:
        """Logits [R, V] after one more token: row i goes on from the row `after_R[i]` of the last call."""
        rows = after_R.tolist()
        self._cache.batch_select_indices(after_R)
        self._prompt_R = [self._prompt_R[row] for row in rows]
        self._said_R = [
            (*self._said_R[row], token)
            for row, token in zip(rows, token_R.tolist(), strict=True)
        ]
        hidden_R1H = self._trunk._hidden_after(
            list(zip(self._prompt_R, self._said_R, strict=True))
        )[:, None]
        self._mask_RT = torch.cat(
            [self._mask_RT[after_R], torch.ones(len(rows), 1, dtype=torch.bool)], 1
        )
        position_R1 = self._position_R[after_R][:, None]
        self._position_R = self._position_R[after_R] + 1
        hidden_R1H = self._trunk._run(
            self._trunk._others, hidden_R1H, position_R1, self._mask_RT[:, None], self._cache
        )
        return self._trunk._logits(hidden_R1H[:, -1])
