"""What a person looks at after training: functions of the arrays that the rounds left behind."""
