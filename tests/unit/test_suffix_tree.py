from engine.spec.suffix_tree import SuffixTree


def test_a_text_that_goes_on_after_another_has_met_it_is_counted_to_its_end():
    tree = SuffixTree(8)
    first, second = tree.new_text(), tree.new_text()
    for text, token in [(first, 1), (first, 2), (second, 1), (second, 2), (first, 3)]:
        tree.append(text, token)
    point = tree.find([1, 2])
    assert point is not None
    assert point[0].count == 2
    assert [(token, times) for token, times, _ in tree.followers(point)] == [(3, 1)]


def test_a_text_that_has_left_is_appended_to_in_vain():
    tree = SuffixTree(8)
    text = tree.new_text()
    tree.append(text, 1)
    tree.remove(text)
    tree.append(text, 2)
    assert tree.find([1]) is None
    assert tree.find([2]) is None


def test_appending_non_repetitive_tokens_makes_one_node_each():
    tree = SuffixTree(64)
    text = tree.new_text()
    for token in range(1000):
        tree.append(text, token)
    assert len(tree._root.children) == 1000
    assert not any(node.children for node in tree._root.children.values())
