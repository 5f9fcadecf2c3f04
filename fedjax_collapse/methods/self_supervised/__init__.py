"""Methods of self-supervised learning, whose clients learn from two augmented views of each example, without labels.

Their model has the task ``self_supervised`` and the head ``heads.Siamese``; without a method it is SimSiam. The methods
replace its loss, add to it, or change what clients receive and how the server averages.
"""
