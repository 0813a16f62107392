"""From scores to a repair plan: candidates, their assignment, the plan as a table, its edits."""
