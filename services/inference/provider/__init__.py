"""A provider in front: requests are passed on to somebody else's model, and its answers are logged like our own.

app ─▶ routes.py ─▶ passing.py ─▶ wire.py ─▶ the provider
                        │  ▲ chat.py, responses.py, messages.py: what is read of bodies, answers and events
                        ▼
                    records.py ─▶ Recorder ─▶ log
"""
