"""The Rewards page: rewards by version, answers without a reward, alarms, the cost of judges, and voters."""
