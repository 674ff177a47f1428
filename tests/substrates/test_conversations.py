"""Tests of lib.substrates.conversations on tiny random decoders."""

import pytest
import torch
from tiny_models import every_family, everything, generator, letters_tokenizer, tiny_decoder, token_ids

from lib.substrates.conversations import encode_prompts, respond


def test_prompts_are_padded_on_the_left_with_whatever_there_is() -> None:
    tokenizer = letters_tokenizer(eos_token="<end>")
    tokens, mask = encode_prompts(tokenizer, ["abc", "a"], context=8)
    assert tokens[0].tolist() == tokenizer("abc").input_ids
    assert tokens[1, :2].tolist() == [tokenizer.eos_token_id] * 2
    assert mask.tolist() == [[True] * 3, [False, False, True]]
    assert tokenizer.pad_token is None, "the tokenizer is left as it is"
    padded = letters_tokenizer(pad_token="a", eos_token="<end>")
    assert encode_prompts(padded, ["bcd", "d"], context=8)[0][1, 0] == padded.pad_token_id
    with pytest.raises(ValueError, match="neither a pad nor an end-of-text"):
        encode_prompts(letters_tokenizer(), ["a"], context=8)


def test_prompts_that_do_not_fit_are_named() -> None:
    tokenizer = letters_tokenizer(eos_token="<end>")
    with pytest.raises(ValueError, match="prompt 1 has 5 tokens"):
        encode_prompts(tokenizer, ["a", "abcde"], context=8, new_tokens=4)
    with pytest.raises(ValueError, match="prompt 0 has 0 tokens"):
        encode_prompts(tokenizer, [""], context=8)
    with pytest.raises(ValueError, match="no prompts"):
        encode_prompts(tokenizer, [], context=8)
    with pytest.raises(ValueError, match="exceed the 24 positions"):
        respond(tiny_decoder(), token_ids(1, 20), everything(token_ids(1, 20)), 5)


@every_family
def test_replies_from_the_cache_are_those_without(family: str) -> None:
    model, prompts = tiny_decoder(family), token_ids(3, 5)
    replies = respond(model, prompts, everything(prompts), 4)
    slow = prompts
    for _ in range(4):
        slow = torch.cat([slow, model(slow, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(replies, slow)
    sampled = [respond(model, prompts, everything(prompts), 4, generator(3)) for _ in range(2)]
    assert torch.equal(*sampled)
    assert torch.equal(sampled[0][:, :5], prompts)


@every_family
def test_padding_does_not_change_a_reply(family: str) -> None:
    model, prompt = tiny_decoder(family), token_ids(1, 5)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), prompt], dim=1)
    alone = respond(model, prompt, everything(prompt), 4)
    assert torch.equal(respond(model, padded, torch.arange(8)[None] >= 3, 4)[:, -4:], alone[:, -4:])


def test_sampling_follows_the_models_distribution() -> None:
    model, prompts = tiny_decoder(), token_ids(1, 5).expand(4000, -1)
    drawn = respond(model, prompts, everything(prompts), 1, generator())[:, -1]
    with torch.no_grad():
        p = model(prompts[:1]).logits[0, -1].softmax(-1)
    assert (drawn.bincount(minlength=31) / 4000 - p).abs().max() < 0.03
