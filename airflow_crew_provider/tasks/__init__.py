"""What operators and sensors share: the record of a POST, outcomes and messages, cancellation, webhooks to send."""
