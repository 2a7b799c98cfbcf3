"""Calls of one session: each is given the tokens that the model saw and wrote before, not a new rendering of them.

Planner ──▶ Turns.next() ─▶ SessionStore: the last known call ─▶ its ids + the rendered new messages ─▶ the prompt
                                                            └──▶ or a new branch, with its reason
completion ─▶ Turns.keep() ─▶ SessionStore: the ids of prompt and answer, under the messages that lead to them
"""
