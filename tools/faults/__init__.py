"""The fault suite: commands that are killed, disks that fail, files that are damaged; see dev/FAULTS.md."""
