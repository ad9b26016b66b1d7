"""deepinfer: an inference engine for DeepSeek-V4.1-architecture models.

    from deepinfer import LLM, SamplingParams

    llm = LLM()                                   # the demonstration checkpoint, on the CPU
    for answer in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32, seq_seed=7)):
        print(answer.outputs[0].text)
    print(llm.chat([{"role": "user", "content": "What is the capital of France?"}])[0].outputs[0].text)
    for delta in llm.stream("Once upon a time", SamplingParams(max_tokens=32)):
        print(delta.text, end="")

A request's answer depends on its prompt, parameters, seed and checkpoint alone, not on what runs beside it.
"""

from deepinfer import recipe
from deepinfer._deepinfer import QueueFullError, StreamDecoder, Tokenizer, __version__
from deepinfer.async_llm import AsyncLLM, AsyncStream
from deepinfer.llm import LLM, Stream
from deepinfer.outputs import CompletionOutput, Delta, RequestOutput, Timing, TokenLogprobs, ToolCall, ToolCallDelta, Usage
from deepinfer.sampling_params import SamplingParams

__all__ = [
    "AsyncLLM", "AsyncStream", "CompletionOutput", "Delta", "LLM", "QueueFullError", "RequestOutput", "SamplingParams", "Stream", "StreamDecoder",
    "Timing", "TokenLogprobs", "Tokenizer", "ToolCall", "ToolCallDelta", "Usage", "__version__", "recipe",
]
