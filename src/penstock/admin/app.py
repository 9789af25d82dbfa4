"""The parts of one nsqadmin, put together.

For whoever writes pages:

    view = await views.topics(admin)                what a page shows
    admin.url("/topics")                            a path under --base-path
    admin.access.is_admin(request)                  whether to show buttons
    admin.access.token(request)                     for the hidden field "token" of every form
    outcome = await admin.actions.form(request)     what a posted form asks for, judged and done;
                                                    HttpError if it may not be
    Route(admin.tasks.handler(page))                a route whose handler is a coroutine function
    answers.html(request, text)                     an answer, compressed if the browser likes

A form posts, as application/x-www-form-urlencoded, the fields:

    token      of access
    action     create, pause, unpause, empty, delete, tombstone, publish or peek
    topic      and channel, if it is about a channel
    node       "host:port", or empty for all nodes
    confirm    empty, delete and tombstone: the name of what it is about, typed by the user:
               the channel's, else the topic's
    body       publish: the message;  defer_ms: publish: its delay
    count      peek: how many messages

Scripts post the same fields as a JSON object to /api/action, with the token in the header
X-CSRF-Token, and get {"message": "", "results": [{"node": .., "error": ""}], "messages": [..]}.
"""
