; a table with an apple and a book, and a closed cabinet, in ALFWorld's domain
(define (problem two_places)
  (:domain alfred)
  (:objects agent1 - agent AppleType BookType - otype TableType CabinetType - rtype
    loc_bar_0 loc_bar_1 loc_bar_2 - location
    Apple_bar_1 Book_bar_1 - object Table_bar_1 Cabinet_bar_1 - receptacle)
  (:init (= (total-cost) 0)
    (receptacleType Table_bar_1 TableType) (receptacleType Cabinet_bar_1 CabinetType)
    (objectType Apple_bar_1 AppleType) (objectType Book_bar_1 BookType)
    (canContain TableType AppleType) (canContain TableType BookType) (canContain CabinetType AppleType) (canContain CabinetType BookType)
    (pickupable Apple_bar_1) (pickupable Book_bar_1) (openable Cabinet_bar_1)
    (atLocation agent1 loc_bar_0) (receptacleAtLocation Table_bar_1 loc_bar_1) (receptacleAtLocation Cabinet_bar_1 loc_bar_2)
    (objectAtLocation Apple_bar_1 loc_bar_1) (objectAtLocation Book_bar_1 loc_bar_1)
    (inReceptacle Apple_bar_1 Table_bar_1) (inReceptacle Book_bar_1 Table_bar_1))
  (:goal (and (inReceptacle Apple_bar_1 Cabinet_bar_1))))
