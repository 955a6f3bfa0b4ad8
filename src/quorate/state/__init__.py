"""What must last: approvals, the operator's passphrase, bearer tokens, the audit trail."""
