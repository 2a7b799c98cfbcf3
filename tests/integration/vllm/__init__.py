"""The process `vllm` with a real vLLM for CPUs: one server for all tests of this folder."""
