"""The leaderboard: every mixer against every task of configs/leaderboard.yaml, tuned, with parameters matched."""
