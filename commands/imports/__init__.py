"""`millrace import`: answers that other systems logged become records of this home's log.

file ─▶ elements.py ─▶ formats/ ─▶ records.py ─▶ importer.py ─▶ topics `signals` and `generations`
         (JSON values)  (rows)      (records)        ╰─▶ progress.py, tally.py
"""
