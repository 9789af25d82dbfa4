"""Policies of topics and channels: where values come from, and which are effective.

    values      a key's value as a person, a file or the journal writes it
    globs       patterns of names, and which of many match a name
    rules       the rules of --policy-file
    file        reading that file; errors with line and key
    merge       the effective values of a topic or channel, with the origin of each
    policies    the component: applies policies, and what is set over HTTP
    lapse       deletes channels without clients, by their channel_lapse
    subjects    topics and channels as these modules see them

Rule 1: a later source wins over an earlier one, key by key: default, file, what was set.
Rule 2: what is answered is synced; a wrong file or value changes nothing.
Rule 3: without policies nothing changes and nothing costs.  A policy costs when it is applied; what
        it does to messages is the business of the topic or channel that has it.
"""
