"""Gearshift beside what a user would otherwise write or take: same models, payloads and threads."""
