"""The process `vllm` with a real vLLM for CPUs. Tests that share a server are in a folder of their own."""
