"""The gallery of notebook 03, first half: each loop as it is given, and mended, with its diagnosis."""

from .names03 import diagnosis

# -- when the update comes, and what is cleared -------------------------------------------------------------


def inside_wrapper_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        full = i % accumulation_steps == 0
        if full:
            optimizer.zero_grad()
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if full:
            optimizer.step()


@diagnosis(fault="cleared on the wrong side", proof=[0, 0, 0, 1 / 4])
def inside_wrapper(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        full = i % accumulation_steps == 0
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if full:
            optimizer.step()
            optimizer.zero_grad()


def book_example_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@diagnosis(fault="wrong window", proof=[1, 4])
def book_example(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def fast_epoch_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        if i % accumulation_steps == 0:
            (loss_fn(model(inputs), targets) / accumulation_steps).backward()
            optimizer.step()
            optimizer.zero_grad()


@diagnosis(fault="data skipped", proof=8)
def fast_epoch(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def jumpy_epochs_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@diagnosis(fault="tail leaks", proof=6)
def jumpy_epochs(model, optimizer, loss_fn, batches, accumulation_steps):
    tail = len(batches) % accumulation_steps
    for i, (inputs, targets) in enumerate(batches, 1):
        divisor = tail if i > len(batches) - tail else accumulation_steps
        (loss_fn(model(inputs), targets) / divisor).backward()
        if i % accumulation_steps == 0 or i == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def sliced_batches_given(model, optimizer, loss_fn, batches, accumulation_steps):
    done = 0
    for number, (inputs, targets) in enumerate(batches, 1):
        last = number == len(batches)
        for x, y in zip(inputs.chunk(accumulation_steps), targets.chunk(accumulation_steps)):
            (loss_fn(model(x), y) / accumulation_steps).backward()
            done += 1
            if done % accumulation_steps == 0 or last:
                optimizer.step()
                optimizer.zero_grad()


@diagnosis(fault="forced update at the end", proof=5)
def sliced_batches(model, optimizer, loss_fn, batches, accumulation_steps):
    done = 0
    for inputs, targets in batches:
        for x, y in zip(inputs.chunk(accumulation_steps), targets.chunk(accumulation_steps)):
            (loss_fn(model(x), y) / accumulation_steps).backward()
            done += 1
            if done % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


# -- how much each micro-batch counts -----------------------------------------------------------------------


def loud_gradients_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@diagnosis(fault="not divided", proof=[1, 1, 1, 1])
def loud_gradients(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def slow_training_given(model, optimizer, loss_fn, batches, accumulation_steps):
    def backward(loss):  # as in the trainer's library
        (loss / accumulation_steps).backward()

    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        backward(loss)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@diagnosis(fault="divided twice", proof=[1 / 16, 1 / 16, 1 / 16, 1 / 16])
def slow_training(model, optimizer, loss_fn, batches, accumulation_steps):
    def backward(loss):  # as in the trainer's library
        (loss / accumulation_steps).backward()

    for i, (inputs, targets) in enumerate(batches, 1):
        loss = loss_fn(model(inputs), targets)
        backward(loss)
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def moving_average_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches):
        so_far = i % accumulation_steps + 1
        loss = loss_fn(model(inputs), targets) / so_far
        loss.backward()
        if so_far == accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()


@diagnosis(fault="running division", proof=1 + 1 / 2 + 1 / 3 + 1 / 4)
def moving_average(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (inputs, targets) in enumerate(batches):
        so_far = i % accumulation_steps + 1
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        loss.backward()
        if so_far == accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()


def odd_sizes_given(model, optimizer, loss_fn, batches, accumulation_steps):
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        for inputs, targets in window:
            loss = loss_fn(model(inputs), targets) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@diagnosis(fault="mean of means", proof=[4 / 13, 4 / 13, 4 / 13, 1 / 13])
def odd_sizes(model, optimizer, loss_fn, batches, accumulation_steps):
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        rows = sum(len(targets) for _, targets in window)
        for inputs, targets in window:
            loss = loss_fn(model(inputs), targets) * len(targets) / rows
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
