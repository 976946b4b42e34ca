# for everybody
