"""What must last: the audit trail."""
